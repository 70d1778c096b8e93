// SPDX-License-Identifier: Apache-2.0
// Goal: every method brings the same bytes at any offset and length, from disk, from memory and
// from the page cache; what cannot be read whole is an error that names the place; and the page
// cache is left as it was. Method: files whose bytes tell their offset, each method by name.
#include "cache/load/file_reader.h"

#include "cache/load/page_cache.h"
#include "cache/load/source_files.h"
#include "tests/load/test_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <random>
#include <thread>

namespace berth {
namespace {

using testing::first_wrong;
using ::testing::HasSubstr;
using testing::pages_cached;
using testing::ReadSlot;
using testing::TestFile;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// A reader and a file that it has prepared.
struct Opened {
    std::unique_ptr<FileReader> reader;
    std::unique_ptr<ReadableFile> file;

    Opened(ReadMethod method, std::unique_ptr<ReadableFile> of) : file(std::move(of)) {
        auto made = FileReader::create({method});
        EXPECT_TRUE(made) << (made ? "" : made.error().message);
        if (!made)
            return;
        reader = std::move(*made);
        Status prepared = reader->prepare(*file);
        EXPECT_TRUE(prepared) << (prepared ? "" : prepared.error().message);
    }
    Opened(ReadMethod method, const TestFile& of)
        : Opened(method, std::make_unique<ReadableFile>(
                             "data", UniqueFd(::open(of.path().c_str(), O_RDONLY | O_CLOEXEC)))) {}

    void expect_right(uint64_t offset, uint64_t bytes) const {
        ReadSlot slot(offset, bytes);
        Status done = reader->read(*file, offset, slot.to());
        ASSERT_TRUE(done) << done.error().message;
        EXPECT_EQ(first_wrong(slot.to(), offset), std::nullopt)
            << "of " << bytes << " bytes at " << offset;
    }
};

// Whether this machine can do it at all: a container may forbid io_uring, a file system direct
// reads.
bool can_read(ReadMethod method, const TestFile& file) {
    auto reader = FileReader::create({method});
    if (!reader)
        return false;
    ReadableFile readable("data", UniqueFd(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC)));
    ReadSlot slot(0, 4096);
    return (*reader)->prepare(readable) && (*reader)->read(readable, 0, slot.to());
}

struct Case {
    ReadMethod method;
    TestFile::Where where;
};

class ReadMethods : public ::testing::TestWithParam<Case> {
  protected:
    static constexpr uint64_t kBytes = 9 * kMiB + 1234;
    void SetUp() override {
        if (!can_read(GetParam().method, file_))
            GTEST_SKIP() << to_string(GetParam().method) << " does not work here";
    }
    TestFile file_{GetParam().where, kBytes};
};

TEST_P(ReadMethods, BringTheSameBytesAtAnyOffsetAndLength) {
    std::mt19937_64 random(11);
    Opened opened(GetParam().method, file_);
    for (uint64_t bytes : {uint64_t{1}, uint64_t{4095}, uint64_t{4096}, uint64_t{4097}, kMiB,
                           kMiB + 1, 3 * kMiB - 3}) {
        for (uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{4096}, kMiB - 1,
                                kBytes - bytes, random() % (kBytes - bytes)}) {
            if (offset + bytes > kBytes)
                continue;
            file_.drop();
            opened.expect_right(offset, bytes);
            // Now a part of it may be cached.
            file_.warm(offset + bytes / 2, 1 + bytes / 4);
            opened.expect_right(offset, bytes);
            file_.warm(offset, bytes);
            opened.expect_right(offset, bytes);
        }
    }
    EXPECT_TRUE(GetParam().where == TestFile::Where::kMemory ||
                opened.reader->report().disk_bytes > 0);
}

TEST_P(ReadMethods, TakeAFileShorterThanAPage) {
    TestFile small(GetParam().where, 100);
    Opened opened(GetParam().method, small);
    for (bool drop : {true, false}) {
        if (drop)
            small.drop();
        opened.expect_right(0, 100);
        opened.expect_right(37, 63);
    }
}

TEST_P(ReadMethods, NameThePlaceWhereAFileEndsTooEarly) {
    Opened opened(GetParam().method, file_);
    for (bool cold : {true, false}) {
        if (cold)
            file_.drop();
        else
            file_.warm(0, kBytes);
        ReadSlot slot(kBytes - 1000, 4 * kMiB);
        Status done = opened.reader->read(*opened.file, kBytes - 1000, slot.to());
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().code, ErrorCode::kCorrupt);
        EXPECT_EQ(done.error().reason, "ShortRead");
        EXPECT_THAT(done.error().message, HasSubstr("data: found 1000 of 4194304 bytes at offset " +
                                                    std::to_string(kBytes - 1000)));
    }
}

TEST_P(ReadMethods, BringTheBytesToManyThreadsAtOnce) {
    file_.drop();
    Opened opened(GetParam().method, file_);
    std::atomic<uint64_t> next{3};
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 8; ++thread)
        threads.emplace_back([&] {
            for (uint64_t at = next.fetch_add(100'000); at < kBytes; at = next.fetch_add(100'000))
                opened.expect_right(at, std::min<uint64_t>(100'000, kBytes - at));
        });
}

// A file that shrinks under the readers gives what it still has, or an error; never zeros for
// bytes that are gone, never a signal.
TEST_P(ReadMethods, AFileThatShrinksIsAnError) {
    for (int round = 0; round < 4; ++round) {
        TestFile file(GetParam().where, kBytes);
        file.drop();
        Opened opened(GetParam().method, file);
        std::atomic<int> refused{0};
        std::atomic<int> wrong{0};
        {
            std::vector<std::jthread> threads;
            for (uint64_t thread = 0; thread < 4; ++thread)
                threads.emplace_back([&, thread] {
                    for (uint64_t at = thread * kMiB; at + 2 * kMiB < kBytes; at += kMiB + 77) {
                        ReadSlot slot(at, 2 * kMiB);
                        Status done = opened.reader->read(*opened.file, at, slot.to());
                        if (!done)
                            refused += done.error().reason == "ShortRead" ? 1 : 1000;
                        else if (first_wrong(slot.to(), at))
                            ++wrong;
                    }
                });
            ASSERT_EQ(::ftruncate(file.fd(), 3 * static_cast<off_t>(kMiB) + round), 0);
        }
        ReadSlot slot(2 * kMiB, 2 * kMiB);
        Status done = opened.reader->read(*opened.file, 2 * kMiB, slot.to());
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().reason, "ShortRead");
        EXPECT_LT(refused, 1000) << "another error than a short read";
        EXPECT_EQ(wrong, 0);
    }
}

TEST_P(ReadMethods, SignalsDoNotBreakAReadOff) {
    struct sigaction ours{};
    struct sigaction before{};
    ours.sa_handler = [](int) {};
    ASSERT_EQ(::sigaction(SIGALRM, &ours, &before), 0); // without SA_RESTART
    itimerval often{{0, 200}, {0, 200}};
    ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
    Opened opened(GetParam().method, file_);
    for (int round = 0; round < 3; ++round) {
        drop_cached(file_.fd(), 0, kBytes);
        opened.expect_right(5, kBytes - 5);
    }
    itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    ::sigaction(SIGALRM, &before, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Each, ReadMethods,
                         ::testing::Values(Case{ReadMethod::kAuto, TestFile::Where::kDisk},
                                           Case{ReadMethod::kUring, TestFile::Where::kDisk},
                                           Case{ReadMethod::kPread, TestFile::Where::kDisk},
                                           Case{ReadMethod::kBuffered, TestFile::Where::kDisk},
                                           Case{ReadMethod::kUring, TestFile::Where::kMemory},
                                           Case{ReadMethod::kPread, TestFile::Where::kMemory},
                                           Case{ReadMethod::kBuffered, TestFile::Where::kMemory}),
                         [](const auto& chosen) {
                             return std::string(to_string(chosen.param.method)) +
                                    (chosen.param.where == TestFile::Where::kDisk ? "_disk"
                                                                                  : "_memory");
                         });

// What the page cache has.

class CacheUse : public ::testing::TestWithParam<ReadMethod> {
  protected:
    static constexpr uint64_t kBytes = 16 * kMiB;
    void SetUp() override {
        if (!can_read(GetParam(), file_) || !file_.drop())
            GTEST_SKIP() << "cannot be told here";
    }
    TestFile file_{TestFile::Where::kDisk, kBytes};
};

TEST_P(CacheUse, WhatIsCachedIsNotReadFromDisk) {
    file_.warm(0, kBytes);
    Opened opened(GetParam(), file_);
    for (uint64_t at = 0; at < kBytes; at += 4 * kMiB)
        opened.expect_right(at, 4 * kMiB);
    EXPECT_EQ(opened.reader->report().disk_bytes, 0U);
    EXPECT_EQ(opened.reader->report().cached_bytes, kBytes);
}

TEST_P(CacheUse, ACachedPartIsReadFromThereAndTheRestFromDisk) {
    file_.warm(5 * kMiB, 3 * kMiB);
    Opened opened(GetParam(), file_);
    for (uint64_t at = 0; at < kBytes; at += 4 * kMiB)
        opened.expect_right(at, 4 * kMiB);
    ReadReport report = opened.reader->report();
    EXPECT_GE(report.cached_bytes, 2 * kMiB);
    EXPECT_LE(report.cached_bytes, 4 * kMiB);
    EXPECT_EQ(report.disk_bytes + report.cached_bytes, kBytes);
    EXPECT_EQ(report.method, to_string(GetParam()));
}

TEST_P(CacheUse, ALoadLeavesTheCacheAsItWas) {
    file_.warm(5 * kMiB, 3 * kMiB);
    uint64_t before = *pages_cached(file_.fd(), 0, kBytes);
    Opened opened(GetParam(), file_);
    {
        std::atomic<uint64_t> next{8 + 100};
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < 4; ++thread)
            threads.emplace_back([&] {
                for (uint64_t at = next.fetch_add(kMiB); at < kBytes; at = next.fetch_add(kMiB))
                    opened.expect_right(at, std::min(kMiB, kBytes - at));
            });
    }
    EXPECT_EQ(*pages_cached(file_.fd(), 5 * kMiB, 3 * kMiB), 3 * kMiB / 4096)
        << "what was cached before was dropped";
    // Where pieces meet, and where the cached part begins and ends, a little may stay.
    EXPECT_LE(*pages_cached(file_.fd(), 0, kBytes), before + 2 * kMiB / 4096 + 64);
}

INSTANTIATE_TEST_SUITE_P(Each, CacheUse,
                         ::testing::Values(ReadMethod::kUring, ReadMethod::kPread,
                                           ReadMethod::kBuffered),
                         [](const auto& chosen) { return std::string(to_string(chosen.param)); });

// Files that take no direct reads.

// The kernel's own files refuse them everywhere.
std::unique_ptr<ReadableFile> refusing_file() {
    return std::make_unique<ReadableFile>("version",
                                          UniqueFd(::open("/proc/version", O_RDONLY | O_CLOEXEC)));
}

TEST(FileReader, ReadsAFileThatRefusesDirectReadsThroughTheCacheAndSaysWhy) {
    std::string wanted = *read_file("/proc/version");
    Opened opened(ReadMethod::kAuto, refusing_file());
    ReadSlot slot(3, wanted.size() - 3);
    Status done = opened.reader->read(*opened.file, 3, slot.to());
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(std::string_view(reinterpret_cast<char*>(slot.to().data()), slot.to().size()),
              wanted.substr(3));
    ReadReport report = opened.reader->report();
    EXPECT_EQ(report.method, "buffered");
    EXPECT_THAT(report.reason, HasSubstr("takes no direct reads"));
    EXPECT_THAT(report.text(), HasSubstr("reader=buffered reason='version takes no direct reads"));
}

TEST(FileReader, ADirectMethodThatWasAskedForIsNotReplaced) {
    auto reader = FileReader::create({ReadMethod::kPread});
    ASSERT_TRUE(reader);
    auto file = refusing_file();
    Status prepared = (*reader)->prepare(*file);
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(prepared.error().reason, "NoDirectReads");
    EXPECT_THAT(prepared.error().message, HasSubstr("reader pread needs them"));
}

TEST(FileReader, NamesOfMethodsAreReadBack) {
    for (ReadMethod method :
         {ReadMethod::kAuto, ReadMethod::kUring, ReadMethod::kPread, ReadMethod::kBuffered})
        EXPECT_EQ(read_method_from(to_string(method)).value(), method);
    EXPECT_THAT(read_method_from("mmap").error().message, HasSubstr("expected auto, io_uring"));
}

// A checkpoint's files.

TEST(SourceFiles, ReadIntoPutsTheBytesInsideTheSlotAsAlignedAsInTheFile) {
    testing::TestCheckpoint made;
    made.write_sharded(2);
    auto checkpoint = open_checkpoint(made.path());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    auto files = SourceFiles::open(*checkpoint);
    ASSERT_TRUE(files) << files.error().message;
    const CheckpointFile& facts = checkpoint->files[1];
    std::string whole = testing::read_bytes(facts.path);
    alignas(4096) static std::byte memory[3 * 4096 + 4096];
    uint64_t offset = 13;
    uint64_t bytes = std::min<uint64_t>(facts.bytes - offset, 4096);
    auto read = files->read_into(1, offset, bytes, std::span(memory));
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(read->size(), bytes);
    EXPECT_GE(read->data(), memory);
    EXPECT_LE(read->data() + bytes, memory + sizeof memory);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read->data()) % 4096, offset % 4096);
    EXPECT_EQ(std::string_view(reinterpret_cast<char*>(read->data()), bytes),
              whole.substr(offset, bytes));
    EXPECT_EQ(files->report().cached_bytes + files->report().disk_bytes > 0, true);
}

TEST(SourceFiles, ASlotThatIsTooSmallOrBeginsWithinAPageIsRefused) {
    testing::TestCheckpoint made;
    made.write_single();
    auto checkpoint = open_checkpoint(made.path());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    auto files = SourceFiles::open(*checkpoint);
    ASSERT_TRUE(files) << files.error().message;
    alignas(4096) static std::byte memory[4 * 4096];
    EXPECT_FALSE(files->read_into(0, 0, 2 * 4096 + 1, std::span(memory)));
    EXPECT_FALSE(files->read_into(0, 0, 8, std::span(memory).subspan(8)));
    EXPECT_TRUE(files->read_into(0, 0, 8, std::span(memory)));
}

} // namespace
} // namespace berth
