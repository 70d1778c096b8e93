// SPDX-License-Identifier: Apache-2.0
// Goal: a file that is written anew is under its name whole and on the disk, or not at all. Method:
// real files; a sync that fails at its nth call.
#include "cache/load/new_file.h"

#include "base/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

namespace berth {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

int g_syncs_until_failure = 0;
int fail_later(int fd) {
    if (g_syncs_until_failure-- == 0) {
        errno = EIO;
        return -1;
    }
    return ::fsync(fd);
}

class NewFileTest : public ::testing::Test {
  protected:
    NewFileTest() {
        std::string pattern = (fs::temp_directory_path() / "berth-new-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
        path_ = folder_ + "/file";
    }
    ~NewFileTest() override { fs::remove_all(folder_); }

    Status publish(NewFile::Sync sync = nullptr) {
        BERTH_ASSIGN(NewFile file, NewFile::create(path_));
        const std::string_view text = "whole";
        BERTH_TRY(file.reserve(text.size()));
        BERTH_TRY(file.write(0, std::as_bytes(std::span(text))));
        return file.publish(sync);
    }
    size_t files() const {
        return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
    }
    std::string folder_;
    std::string path_;
};

TEST_F(NewFileTest, IsThereWholeOnceItIsPublished) {
    Status published = publish();
    ASSERT_TRUE(published) << published.error().message;
    EXPECT_EQ(*read_file(path_), "whole");
    EXPECT_EQ(files(), 1U);
}

TEST_F(NewFileTest, ThatIsNotPublishedLeavesNothing) {
    ASSERT_TRUE(NewFile::create(path_));
    EXPECT_EQ(files(), 0U);
}

TEST_F(NewFileTest, WhoseBytesDoNotReachTheDiskLeavesNothing) {
    g_syncs_until_failure = 0;
    Status published = publish(fail_later);
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().source, EIO);
    EXPECT_EQ(files(), 0U);
}

TEST_F(NewFileTest, WhoseNameDoesNotReachTheDiskIsRemovedAgainAndSaidSo) {
    g_syncs_until_failure = 1;
    Status published = publish(fail_later);
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().source, EIO);
    EXPECT_THAT(published.error().message, HasSubstr(path_));
    EXPECT_THAT(published.error().message, HasSubstr("removed again"));
    EXPECT_EQ(files(), 0U);
}

TEST_F(NewFileTest, IntoAFolderThatIsNotThereFailsBeforeAnythingIsWritten) {
    auto made = NewFile::create(folder_ + "/none/file");
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(made.error().message, HasSubstr(folder_ + "/none"));
}

TEST(PartialNames, AreKnownByTheirFormAlone) {
    const std::string partial = partial_name("a.image");
    ASSERT_TRUE(name_of_partial(partial)) << partial;
    EXPECT_EQ(*name_of_partial(partial), "a.image");
    EXPECT_EQ(*name_of_partial("x.0123456789abcdef.partial"), "x");
    for (const char* other :
         {"", ".partial", "a.partial", "0123456789abcdef.partial", ".0123456789abcdef.partial",
          "a.0123456789abcdeF.partial", "a-0123456789abcdef.partial", "a.123456789abcdef.partial",
          "a.0123456789abcdef.partial.txt"})
        EXPECT_FALSE(name_of_partial(other)) << other;
}

} // namespace
} // namespace berth
