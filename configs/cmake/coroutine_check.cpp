// SPDX-License-Identifier: Apache-2.0
// Run at configure time: prints the balance of constructions and destructions of a value that a
// lambda captures and that is passed, as a temporary, into a coroutine within a co_await
// expression. A sound compiler prints 0. g++ 12 destroys the value twice and prints -1 (see
// docs/architecture.md).
#include <coroutine>
#include <cstdio>
#include <utility>

namespace {

int live = 0;

struct Counted {
    Counted() { ++live; }
    Counted(const Counted&) { ++live; }
    Counted(Counted&&) noexcept { ++live; }
    ~Counted() { --live; }
};

struct Task {
    struct promise_type {
        std::coroutine_handle<> waiter;
        Task get_return_object() { return Task{Handle::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        struct Final {
            bool await_ready() noexcept { return false; }
            std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> h) noexcept {
                return h.promise().waiter ? h.promise().waiter : std::noop_coroutine();
            }
            void await_resume() noexcept {}
        };
        Final final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() {}
    };
    using Handle = std::coroutine_handle<promise_type>;
    Handle handle;
    explicit Task(Handle h) : handle(h) {}
    Task(Task&& other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
    ~Task() {
        if (handle)
            handle.destroy();
    }
    bool await_ready() { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiter) {
        handle.promise().waiter = waiter;
        return handle;
    }
    void await_resume() {}
};

template <typename F>
Task call(F f) {
    f();
    co_return;
}

Task outer() {
    Counted counted;
    co_await call([counted] { (void)counted; });
}

} // namespace

int main() {
    {
        Task task = outer();
        task.handle.resume();
    }
    std::printf("%d\n", live);
    return live == 0 ? 0 : 1;
}
