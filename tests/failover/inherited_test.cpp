// SPDX-License-Identifier: Apache-2.0
// Goal: a process takes the descriptors that are meant for it, once, and no others. Method: in
// forked children, which may overwrite their low descriptors and their environment.
#include "base/inherited.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

// Whether `check` holds in a child with `count` announced descriptors, from 3 up, that are
// /dev/null.
bool in_child(const std::string& announced, int open_count, const std::string& names,
              const std::function<bool()>& check, bool for_other = false) {
    const pid_t child = ::fork();
    if (child == 0) {
        const int null = ::fcntl(::open("/dev/null", O_RDONLY), F_DUPFD_CLOEXEC, 50);
        for (int fd = 3; fd < 3 + open_count; ++fd)
            ::dup2(null, fd);
        ::close(3 + open_count);
        ::setenv("LISTEN_FDS", announced.c_str(), 1);
        ::setenv("LISTEN_PID", std::to_string(::getpid() + (for_other ? 1 : 0)).c_str(), 1);
        ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
        ::_exit(check() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool is_open(int fd) {
    return ::fcntl(fd, F_GETFD) >= 0;
}

TEST(Inherited, AreTakenOnceByNameAndAreCloseOnExec) {
    EXPECT_TRUE(in_child("3", 3, "berth-listen:other", [] {
        if (!inherits_descriptors())
            return false;
        const auto taken = take_inherited_descriptors();
        return taken && taken->size() == 3 && (*taken)[0].name == "berth-listen" &&
               (*taken)[0].fd.get() == 3 && (*taken)[1].name == "other" &&
               (*taken)[2].name == "unknown" && ::fcntl(5, F_GETFD) == FD_CLOEXEC &&
               std::getenv("LISTEN_FDS") == nullptr && std::getenv("LISTEN_PID") == nullptr &&
               !inherits_descriptors() && take_inherited_descriptors()->empty();
    }));
}

TEST(Inherited, OfAnotherProcessAreLeftAlone) {
    EXPECT_TRUE(in_child(
        "2", 2, "a:b",
        [] {
            const auto taken = take_inherited_descriptors();
            return !inherits_descriptors() && taken && taken->empty() && is_open(3);
        },
        /*for_other=*/true));
}

TEST(Inherited, ThatAreNotOpenOrCannotBeCountedAreRefusedInWords) {
    EXPECT_TRUE(in_child("3", 2, "a:b:c", [] {
        const auto taken = take_inherited_descriptors();
        return !taken && taken.error().code == ErrorCode::kFailedPrecondition &&
               taken.error().message.find("5 is not open") != std::string::npos;
    }));
    for (const char* count : {"many", "-1", "1000000", "1 "}) {
        EXPECT_TRUE(in_child(count, 1, "a", [] {
            const auto taken = take_inherited_descriptors();
            return !taken && taken.error().code == ErrorCode::kInvalidArgument;
        })) << count;
    }
}

} // namespace
} // namespace berth
