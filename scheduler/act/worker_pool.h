// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include <functional>
#include <memory>
#include <utility>

namespace berth {

// The few threads for what may block: reading checkpoint headers, NVML, the keeper. run() takes the
// work to a thread and its result back to the decision thread. The destructor waits for what is
// running; results that come after it are dropped.
class WorkerPool {
  public:
    WorkerPool(boost::asio::io_context& context, size_t threads)
        : context_(context), pool_(threads) {}
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;
    ~WorkerPool() { stop(); }

    template <typename Work, typename Then>
    void run(Work work, Then then) {
        auto& context = context_;
        boost::asio::post(pool_, [&context, work = std::move(work), then = std::move(then),
                                  alive = std::weak_ptr(alive_)]() mutable {
            auto result = std::make_shared<decltype(work())>(work());
            boost::asio::post(context, [result, alive, then = std::move(then)]() mutable {
                if (!alive.expired())
                    then(std::move(*result));
            });
        });
    }
    void stop() {
        alive_.reset();
        pool_.stop();
        pool_.join();
    }

  private:
    boost::asio::io_context& context_;
    boost::asio::thread_pool pool_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

} // namespace berth
