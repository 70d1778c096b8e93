// SPDX-License-Identifier: Apache-2.0
// Goal: what is cached of a file is told and read without a disk, and looking does not bring more
// of it in. Method: a file on disk of which a part is brought in by the test; skipped where the
// kernel does not tell what it caches.
#include "cache/load/page_cache.h"

#include "tests/load/test_file.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

using testing::first_wrong;
using testing::pages_cached;
using testing::ReadSlot;
using testing::TestFile;
constexpr uint64_t kMiB = uint64_t{1} << 20;

class PageCacheTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!file_.drop())
            GTEST_SKIP() << "this file system's pages cannot be dropped, or nobody tells";
    }
    TestFile file_{TestFile::Where::kDisk, 8 * kMiB};
};

TEST_F(PageCacheTest, TellsNoneSomeAndAll) {
    ReadableFile file = file_.readable();
    EXPECT_EQ(cached_state(file.fd(), 0, 8 * kMiB), Cached::kNone);
    file_.warm(2 * kMiB, kMiB);
    EXPECT_EQ(cached_state(file.fd(), 0, 8 * kMiB), Cached::kSome);
    EXPECT_EQ(cached_state(file.fd(), 2 * kMiB + 17, kMiB - 100), Cached::kAll);
    EXPECT_EQ(cached_state(file.fd(), 5 * kMiB, kMiB), Cached::kNone);
}

TEST_F(PageCacheTest, ReadsWhatIsThereAndStopsWhereItEnds) {
    ReadableFile file = file_.readable();
    file_.warm(0, kMiB);
    ReadSlot slot(100, 2 * kMiB);
    uint64_t got = read_cached(file.fd(), 100, slot.to());
    EXPECT_GE(got, kMiB - 100);
    EXPECT_EQ(first_wrong(slot.to().first(got), 100), std::nullopt);
    // Newer kernels start reading for a look; a page here and there may come, not the range.
    EXPECT_LE(*pages_cached(file.fd(), 3 * kMiB, 5 * kMiB), 64U);
}

TEST_F(PageCacheTest, DropsThePagesThatARangeTouches) {
    file_.warm(0, 8 * kMiB);
    drop_cached(file_.fd(), 2 * kMiB + 5000, kMiB);
    EXPECT_EQ(*pages_cached(file_.fd(), 2 * kMiB + 8192, kMiB - 8192), 0U);
    EXPECT_EQ(*pages_cached(file_.fd(), 0, 2 * kMiB), 2 * kMiB / 4096);
}

} // namespace
} // namespace berth
