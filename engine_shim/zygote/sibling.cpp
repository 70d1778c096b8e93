// SPDX-License-Identifier: Apache-2.0
// fork(2) has no way to say whose child the new process is; the system call under it has. What the
// C library does around that call in fork() must then be done here: with one thread its locks are
// free and its lists are in order, so what is left is that its record of the thread has the new
// thread's number (CLONE_CHILD_SETTID to where the library told the kernel it keeps it) and that
// the kernel is told of the list of robust mutexes, which it forgets in the new process.
#include "engine_shim/zygote/sibling.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <linux/sched.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace berth::zygote {

namespace {

// Where the C library has this thread's number.
Result<int*> thread_number() {
    int* place = nullptr;
    if (::prctl(PR_GET_TID_ADDRESS, &place, 0, 0, 0) != 0 || place == nullptr)
        return fail(ErrorCode::kUnsupported,
                    "the kernel does not tell where a thread's number is kept (it is built without "
                    "CONFIG_CHECKPOINT_RESTORE)");
    if (*place != ::gettid())
        return fail(
            ErrorCode::kUnsupported,
            fmt::format("the C library has {} as the number of thread {}", *place, ::gettid()));
    return place;
}

// A mutex that knows its owner asks the library's record for the number.
bool library_knows_itself() {
    pthread_mutexattr_t kind;
    pthread_mutex_t mutex;
    ::pthread_mutexattr_init(&kind);
    ::pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    ::pthread_mutex_init(&mutex, &kind);
    ::pthread_mutex_lock(&mutex);
    const bool knows = mutex.__data.__owner == ::gettid();
    ::pthread_mutex_unlock(&mutex);
    ::pthread_mutex_destroy(&mutex);
    ::pthread_mutexattr_destroy(&kind);
    return knows;
}

} // namespace

Result<int> fork_sibling() {
    BERTH_ASSIGN(int* number, thread_number());
    void* robust = nullptr;
    size_t robust_bytes = 0;
    const bool has_robust =
        ::syscall(SYS_get_robust_list, 0, &robust, &robust_bytes) == 0 && robust != nullptr;
    constexpr unsigned long kFlags =
        CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
#if defined(__x86_64__)
    const long pid = ::syscall(SYS_clone, kFlags, nullptr, nullptr, number, nullptr);
#else
    const long pid = ::syscall(SYS_clone, kFlags, nullptr, nullptr, nullptr, number);
#endif
    if (pid < 0)
        return fail_errno("clone");
    if (pid == 0 && has_robust)
        (void)::syscall(SYS_set_robust_list, robust, robust_bytes);
    return static_cast<int>(pid);
}

Status check_fork_sibling() {
    BERTH_ASSIGN(int* number, thread_number());
    (void)number;
    if (!library_knows_itself())
        return fail(ErrorCode::kUnsupported,
                    "this C library's mutexes do not have their owner where it was expected");
    return {};
}

} // namespace berth::zygote
