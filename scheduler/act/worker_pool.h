// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/log.h"
#include "base/result.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace berth {

// What is told in place of a result that there is not: an error, nothing, words, or what the type's
// own of_failure() makes of it. Nothing else: a value by default might read as success.
template <typename Value>
struct InPlaceOf {
    static Value result(Error error) { return Value::of_failure(std::move(error)); }
};
template <typename Value>
struct InPlaceOf<Result<Value>> {
    static Result<Value> result(Error error) { return fail(std::move(error)); }
};
template <typename Value>
struct InPlaceOf<std::optional<Value>> {
    static std::optional<Value> result(const Error&) { return std::nullopt; }
};
template <>
struct InPlaceOf<std::string> {
    static std::string result(Error error) { return std::move(error.message); }
};

// A few threads for what may block: files, NVML, the keeper. run() takes the work to a thread and
// its result back to the decision thread; work that ends with an exception is in the log, and told
// as a failure. The destructor waits for what is running; results that come after it are dropped.
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
            auto result = std::make_shared<decltype(work())>(done(work));
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
    template <typename Work>
    static std::invoke_result_t<Work&> done(Work& work) {
        std::string what = "an unknown exception";
        try {
            return work();
        } catch (const std::exception& exception) {
            what = exception.what();
        } catch (...) {
        }
        log::error("work on a thread ended with an exception: {}; taken for a failure", what);
        return InPlaceOf<std::invoke_result_t<Work&>>::result(
            Error{ErrorCode::kInternal, "ended unexpectedly: " + what, "WorkFailed", 0});
    }

    boost::asio::io_context& context_;
    boost::asio::thread_pool pool_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

} // namespace berth
