// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/node_context.h"
#include "scheduler/act/signal.h"
#include "scheduler/admin/views.h"

#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <optional>

namespace berth {

// What the driver and the kernel say is used on each device. Asking costs a call a GPU and, on a
// host device, the memory map of each of its processes: an answer holds for kGoodFor, but no longer
// than what the ledger knows stays as it was. Whoever asks while a question is under way waits for
// that one's answer.
//
// Thread rule: the decision thread; the questions are asked on a worker. The context and the
// workers outlive it.
class DriverFigures {
  public:
    static constexpr std::chrono::milliseconds kGoodFor{50};

    DriverFigures(NodeContext& context, WorkerPool& workers)
        : context_(context), workers_(workers), answered_(context.io) {}
    DriverFigures(const DriverFigures&) = delete;
    DriverFigures& operator=(const DriverFigures&) = delete;

    boost::asio::awaitable<views::DriverBytes> now();

  private:
    struct Answer {
        views::DriverBytes bytes;
        uint64_t stamp = 0;
        std::chrono::steady_clock::time_point asked;
    };
    class Turn; // while one lives, is_asking_
    bool holds(const std::optional<Answer>& answer, uint64_t stamp) const;

    NodeContext& context_;
    WorkerPool& workers_;
    std::optional<Answer> last_;
    bool is_asking_ = false;
    Signal answered_;
};

} // namespace berth
