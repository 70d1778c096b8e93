// SPDX-License-Identifier: Apache-2.0
// Goal: where a container, a limit or a file system takes a way of reading away, the load goes on
// another way with the same bytes and says why. Method: the limit is set in a child process, which
// reads there and tells what came of it.
#include "cache/load/file_reader.h"

#include "cache/load/page_cache.h"
#include "tests/load/test_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>

namespace berth {
namespace {

using testing::first_wrong;
using ::testing::HasSubstr;
using testing::ReadSlot;
using ::testing::StartsWith;
using testing::TestFile;
constexpr uint64_t kBytes = (uint64_t{5} << 20) + 77;

// What `work` returns in a child; "died" when it does not come to that.
std::string in_child(const std::function<std::string()>& work) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    UniqueFd from(ends[0]);
    UniqueFd to(ends[1]);
    pid_t child = ::fork();
    if (child == 0) {
        std::string said = work();
        (void)!::write(to.get(), said.data(), said.size());
        ::_exit(0);
    }
    to.reset();
    std::string said;
    std::array<char, 1024> block{};
    for (ssize_t got = 0; (got = ::read(from.get(), block.data(), block.size())) > 0;)
        said.append(block.data(), static_cast<size_t>(got));
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status == 0 ? said : fmt::format("died: {:#x}", status);
}

// Reads all of the file by `method`: "METHOD: REASON" when its bytes are right, else the error.
std::string read_all(ReadMethod method, const std::string& path, uint64_t bytes) {
    auto reader = FileReader::create({method});
    if (!reader)
        return "error: " + reader.error().message;
    ReadableFile file("data", UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
    drop_cached(file.fd(), 0, bytes);
    if (Status prepared = (*reader)->prepare(file); !prepared)
        return "error: " + prepared.error().message;
    ReadSlot slot(1, bytes - 1);
    if (Status done = (*reader)->read(file, 1, slot.to()); !done)
        return "error: " + done.error().message;
    if (auto wrong = first_wrong(slot.to(), 1))
        return fmt::format("error: wrong byte at {}", *wrong);
    ReadReport report = (*reader)->report();
    return report.method + ": " + report.reason;
}

// From here on io_uring_setup fails so in this process, as under a container's default filter.
bool forbid_io_uring(int error_number) {
    std::array<sock_filter, 4> program = {{
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_io_uring_setup},
        {BPF_RET | BPF_K, 0, 0,
         SECCOMP_RET_ERRNO | (static_cast<unsigned>(error_number) & SECCOMP_RET_DATA)},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    }};
    sock_fprog filter{program.size(), program.data()};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(ReaderLimits, WhereIoUringIsForbiddenReadsGoByPreadWithTheReason) {
    TestFile file(TestFile::Where::kDisk, kBytes);
    file.drop();
    for (int error_number : {EPERM, ENOSYS, ENOMEM}) {
        std::string said = in_child([&]() -> std::string {
            if (!forbid_io_uring(error_number))
                return "skip";
            return read_all(ReadMethod::kAuto, file.path(), kBytes);
        });
        if (said == "skip")
            GTEST_SKIP() << "no filter may be set here";
        // A file system that takes no direct reads either has the last word on the reason.
        EXPECT_THAT(said, ::testing::AnyOf(StartsWith("pread: io_uring: "),
                                           StartsWith("buffered: data takes no direct reads")));
        if (said.starts_with("pread"))
            EXPECT_THAT(said, HasSubstr(std::strerror(error_number)));
    }
}

TEST(ReaderLimits, IoUringThatWasAskedForAndIsForbiddenIsAnErrorWithTheReason) {
    TestFile file(TestFile::Where::kDisk, kBytes);
    std::string said = in_child([&]() -> std::string {
        if (!forbid_io_uring(EPERM))
            return "skip";
        return read_all(ReadMethod::kUring, file.path(), kBytes);
    });
    if (said == "skip")
        GTEST_SKIP() << "no filter may be set here";
    EXPECT_THAT(said, StartsWith("error: io_uring: a seccomp filter or the sysctl"));
}

TEST(ReaderLimits, NoLockedMemoryMayCostIoUringButNoBytes) {
    TestFile file(TestFile::Where::kDisk, kBytes);
    ASSERT_EQ(::fchmod(file.fd(), 0644), 0);
    // The descriptor is inherited: another user may not enter the folder.
    std::string path = fmt::format("/proc/self/fd/{}", file.fd());
    std::string said = in_child([&]() -> std::string {
        rlimit none{0, 0};
        if (::setrlimit(RLIMIT_MEMLOCK, &none) != 0)
            return "no limit set";
        // Root is above this limit.
        if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0)
            return "still root";
        return read_all(ReadMethod::kAuto, path, kBytes);
    });
    EXPECT_THAT(said, ::testing::AnyOf(StartsWith("io_uring: "), StartsWith("pread: "),
                                       StartsWith("buffered: ")));
}

TEST(ReaderLimits, AtTheLimitOfDescriptorsAutoReadsOnThroughTheCache) {
#ifdef BERTH_SANITIZED
    GTEST_SKIP() << "a sanitizer opens a pipe to look whether memory may be read";
#endif
    TestFile file(TestFile::Where::kDisk, kBytes);
    std::string said = in_child([&]() -> std::string {
        auto reader = FileReader::create({ReadMethod::kAuto});
        if (!reader)
            return reader.error().message;
        ReadableFile readable("data", UniqueFd(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC)));
        rlimit few{static_cast<rlim_t>(readable.fd()) + 1, static_cast<rlim_t>(readable.fd()) + 1};
        if (::setrlimit(RLIMIT_NOFILE, &few) != 0)
            return "no limit set";
        if (Status prepared = (*reader)->prepare(readable); !prepared)
            return prepared.error().message;
        ReadSlot slot(1, kBytes - 1);
        if (Status done = (*reader)->read(readable, 1, slot.to()); !done)
            return done.error().message;
        return first_wrong(slot.to(), 1) ? "wrong bytes" : (*reader)->report().reason;
    });
    EXPECT_THAT(said, HasSubstr("data takes no direct reads"));
    EXPECT_THAT(said, HasSubstr("Too many open files"));
}

TEST(ReaderLimits, AnOverlayIsReadByEveryMethod) {
    testing::TempFolder folder;
    for (const char* name : {"lower", "upper", "work", "merged"})
        ASSERT_TRUE(make_directories(folder.file(name)));
    {
        TestFile lower(folder.file("lower"), kBytes);
    }
    for (ReadMethod method : {ReadMethod::kAuto, ReadMethod::kPread, ReadMethod::kBuffered}) {
        std::string said = in_child([&]() -> std::string {
            std::string options =
                fmt::format("lowerdir={},upperdir={},workdir={}", folder.file("lower"),
                            folder.file("upper"), folder.file("work"));
            // The mount is this child's alone and goes with it.
            if (::unshare(CLONE_NEWNS) != 0 ||
                ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
                ::mount("overlay", folder.file("merged").c_str(), "overlay", 0, options.c_str()) !=
                    0)
                return "skip";
            return read_all(method, folder.file("merged/data"), kBytes);
        });
        if (said == "skip")
            GTEST_SKIP() << "no overlay may be mounted here";
        EXPECT_THAT(said, ::testing::Not(StartsWith("error")));
        if (method != ReadMethod::kAuto)
            EXPECT_EQ(said, fmt::format("{}: asked for", to_string(method)));
    }
}

} // namespace
} // namespace berth
