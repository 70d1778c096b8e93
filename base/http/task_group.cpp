// SPDX-License-Identifier: Apache-2.0
#include "base/http/task_group.h"

#include "base/log.h"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>

#include <exception>
#include <list>
#include <utility>

namespace berth::http {

namespace asio = boost::asio;

namespace {

struct Task {
    std::list<std::shared_ptr<Task>>::iterator place; // in the group's list
    std::string name;
    asio::cancellation_signal cancel;
};

void log_end(const std::string& name, const std::exception_ptr& thrown) {
    if (!thrown)
        return;
    try {
        std::rethrow_exception(thrown);
    } catch (const boost::system::system_error& error) {
        if (error.code() != asio::error::operation_aborted)
            log::warn("task ended by an error task={} error=\"{}\"", name, error.what());
    } catch (const std::exception& error) {
        log::error("task ended by an exception task={} error=\"{}\"", name, error.what());
    }
}

} // namespace

struct TaskGroup::State : std::enable_shared_from_this<State> {
    explicit State(asio::io_context& io) : context(io) {}

    asio::io_context& context;
    std::list<std::shared_ptr<Task>> tasks;
    std::function<void()> when_empty;
    bool closed = false;

    void ended(const std::shared_ptr<Task>& task, const std::exception_ptr& thrown) {
        log_end(task->name, thrown);
        tasks.erase(task->place);
        tell_if_empty();
    }

    void tell_if_empty() {
        if (!tasks.empty() || !when_empty)
            return;
        asio::post(context, std::exchange(when_empty, nullptr));
    }
};

TaskGroup::TaskGroup(asio::io_context& context) : state_(std::make_shared<State>(context)) {}

TaskGroup::~TaskGroup() {
    close();
}

bool TaskGroup::start(std::string name, asio::awaitable<void> task) {
    if (state_->closed)
        return false;
    auto entry = std::make_shared<Task>();
    entry->name = std::move(name);
    entry->place = state_->tasks.insert(state_->tasks.end(), entry);
    // The entry outlives the coroutine: the completion handler holds it.
    asio::co_spawn(
        state_->context, std::move(task),
        asio::bind_cancellation_slot(entry->cancel.slot(),
                                     [state = state_, entry](const std::exception_ptr& thrown) {
                                         state->ended(entry, thrown);
                                     }));
    return true;
}

void TaskGroup::close() {
    if (std::exchange(state_->closed, true))
        return;
    // A copy: ending tasks leave the list.
    std::list<std::shared_ptr<Task>> running = state_->tasks;
    for (const auto& task : running)
        task->cancel.emit(asio::cancellation_type::terminal);
}

size_t TaskGroup::running() const {
    return state_->tasks.size();
}

void TaskGroup::on_empty(std::function<void()> callback) {
    state_->when_empty = std::move(callback);
    state_->tell_if_empty();
}

} // namespace berth::http
