// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/worker_pool.h"

namespace berth {

// Threads by who waits for them, so that no slow answer holds up another kind of question: an
// engine that has given its memory back must not be ended because somebody reads.
struct Workers {
    explicit Workers(boost::asio::io_context& context)
        : memory(context, 2), processes(context, 1), checkpoints(context, 2), images(context, 1),
          documents(context, 1), questions(context, 2), driver(context, 1) {}
    void stop() {
        for (WorkerPool* pool :
             {&memory, &processes, &checkpoints, &images, &documents, &questions, &driver})
            pool->stop();
    }

    WorkerPool memory;      // what engines hold: preemptions wait for it, with a deadline
    WorkerPool processes;   // what the system says of a process that does not end
    WorkerPool checkpoints; // whether their files have changed, on whatever disk they lie
    WorkerPool images;      // their files, in the order of the calls
    WorkerPool documents;   // changes of documents, in the order of the calls
    WorkerPool questions;   // what callers ask that takes long to work out: plans, differences
    WorkerPool driver;      // what people are shown of the driver
};

} // namespace berth
