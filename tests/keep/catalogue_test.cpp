// SPDX-License-Identifier: Apache-2.0
// Goal: a new berthd knows from the keeper's records all that the old one knew. Method: records
// there and back, and look-ups on made-up sets.
#include "cache/keep/catalogue.h"

#include "cache/keep/keeper_store.h"

#include <gmock/gmock.h>

#include <fcntl.h>
#include <sys/stat.h>

namespace berth {
namespace {

using ::testing::HasSubstr;

UniqueFd null_fd() {
    return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

ResidentSet a_set(const std::string& id, const std::string& device = "host-0") {
    ResidentSet set;
    set.id = id;
    set.fingerprint = id + "-the-rest";
    set.fingerprint_json = R"({"dtype":"BF16","environment":{"layout":"berth-1"}})";
    set.model = "chat";
    set.path = "/models/\"chat\"\n";
    set.device = device;
    set.manifest = null_fd();
    set.segments.push_back(Segment{null_fd(), 4096});
    set.segments.push_back(Segment{null_fd(), uint64_t{3} << 40});
    set.tensors = 272;
    set.pinned = true;
    set.loaded_at_ms = 1'700'000'000'123;
    set.bytes_read = uint64_t{1} << 60;
    set.phases = {{"read", 12.5}, {"seal", 0.25}};
    return set;
}

std::vector<UniqueFd> three_fds() {
    std::vector<UniqueFd> fds;
    for (int i = 0; i < 3; ++i)
        fds.push_back(null_fd());
    return fds;
}

TEST(Catalogue, RecordsComeBackFromTheKeeperWhole) {
    ResidentSet set = a_set("0123456789abcdef");
    EXPECT_EQ(set.descriptors().size(), 3U);
    EXPECT_TRUE(is_resident_set_key(set.key()));
    EXPECT_FALSE(is_resident_set_key("gate/host-0"));
    auto back = resident_set_from(set.key(), keeper_meta_of(set), three_fds());
    ASSERT_TRUE(back.has_value()) << back.error().message;
    EXPECT_EQ(back->id, set.id);
    EXPECT_EQ(back->fingerprint, set.fingerprint);
    EXPECT_EQ(back->fingerprint_json, set.fingerprint_json);
    EXPECT_EQ(back->model, set.model);
    EXPECT_EQ(back->path, set.path);
    EXPECT_EQ(back->device, set.device);
    EXPECT_EQ(back->tensors, set.tensors);
    EXPECT_EQ(back->pinned, set.pinned);
    EXPECT_EQ(back->loaded_at_ms, set.loaded_at_ms);
    EXPECT_EQ(back->bytes_read, set.bytes_read);
    EXPECT_EQ(back->phases, set.phases);
    ASSERT_EQ(back->segments.size(), 2U);
    EXPECT_EQ(back->segments[1].bytes, set.segments[1].bytes);
    EXPECT_EQ(back->bytes(), set.bytes());
    EXPECT_TRUE(back->manifest && back->segments[0].fd && back->segments[1].fd);
    EXPECT_EQ(keeper_meta_of(*back), keeper_meta_of(set));
}

TEST(Catalogue, RecordsThatAreNotWholeAreRefusedByName) {
    ResidentSet set = a_set("0123456789abcdef");
    std::string meta = keeper_meta_of(set);
    auto fewer = three_fds();
    fewer.pop_back();
    auto short_of_one = resident_set_from(set.key(), meta, std::move(fewer));
    ASSERT_FALSE(short_of_one.has_value());
    EXPECT_EQ(short_of_one.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(short_of_one.error().message, HasSubstr("2 descriptors, expected 3"));
    EXPECT_EQ(resident_set_from("set/other@host-0", meta, three_fds()).error().code,
              ErrorCode::kCorrupt);
    for (const char* bad : {"", "[]", "{}", R"({"kind":"weight-set","version":1})"})
        EXPECT_EQ(resident_set_from(set.key(), bad, three_fds()).error().code, ErrorCode::kCorrupt)
            << bad;
    auto replaced = [&](const std::string& from, const std::string& to) {
        std::string text = meta;
        text.replace(text.find(from), from.size(), to);
        return resident_set_from(set.key(), text, three_fds());
    };
    EXPECT_EQ(replaced(R"("version":1)", R"("version":2)").error().code, ErrorCode::kMismatch);
    EXPECT_EQ(replaced("[4096,", "[0,").error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(replaced("[4096,", "[-1,").error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(replaced(R"("tensors":272)", R"("tensors":"x")").error().message,
                HasSubstr("tensors"));
}

TEST(Catalogue, HoldsOneOfEachSetOnEachDevice) {
    Catalogue catalogue;
    ASSERT_TRUE(catalogue.add(a_set("a")).has_value());
    EXPECT_EQ(catalogue.add(a_set("a")).error().code, ErrorCode::kAlreadyExists);
    ASSERT_TRUE(catalogue.add(a_set("a", "host-1")).has_value());
    EXPECT_EQ(catalogue.size(), 2U);
    EXPECT_EQ(catalogue.find("a", "host-1")->device, "host-1");
    EXPECT_NE(catalogue.find("a"), nullptr);
    EXPECT_EQ(catalogue.find("b"), nullptr);
    EXPECT_EQ(catalogue.find_by_fingerprint("a-the-rest", "host-1")->device, "host-1");
    EXPECT_EQ(catalogue.find_by_fingerprint("a-the-rest", "host-2"), nullptr);
    EXPECT_EQ(catalogue.bytes_on("host-0"), a_set("a").bytes());
    auto removed = catalogue.remove("a", "host-0");
    ASSERT_TRUE(removed.has_value());
    EXPECT_TRUE(removed->manifest);
    EXPECT_EQ(catalogue.remove("a", "host-0").error().code, ErrorCode::kNotFound);
    EXPECT_EQ(catalogue.all().size(), 1U);
}

TEST(Catalogue, NewestSetOfAModelIsFound) {
    Catalogue catalogue;
    ResidentSet old = a_set("a");
    ResidentSet fresh = a_set("b");
    fresh.loaded_at_ms = old.loaded_at_ms + 1;
    ASSERT_TRUE(catalogue.add(std::move(fresh)).has_value());
    ASSERT_TRUE(catalogue.add(std::move(old)).has_value());
    EXPECT_EQ(catalogue.find_by_model("chat")->id, "b");
    EXPECT_EQ(catalogue.find_by_model("/models/\"chat\"\n")->id, "b");
    EXPECT_EQ(catalogue.find_by_model("chat", "host-1"), nullptr);
}

TEST(Catalogue, NearestSetHasTheFewestDifferentFields) {
    Catalogue catalogue;
    ResidentSet far = a_set("far");
    far.fingerprint_json = R"({"dtype":"F32","environment":{"layout":"x","cuda":"13.0"}})";
    ResidentSet near = a_set("near");
    near.fingerprint_json = R"({"dtype":"BF16","environment":{"layout":"x"}})";
    ResidentSet other = a_set("other");
    other.model = "another";
    other.path = "/elsewhere";
    ASSERT_TRUE(catalogue.add(std::move(far)).has_value());
    ASSERT_TRUE(catalogue.add(std::move(near)).has_value());
    ASSERT_TRUE(catalogue.add(std::move(other)).has_value());
    const char* wanted = R"({"dtype":"BF16","environment":{"layout":"berth-1"}})";
    EXPECT_EQ(catalogue.nearest("chat", "", wanted)->id, "near");
    EXPECT_EQ(catalogue.nearest("unknown", "/elsewhere", wanted)->id, "other");
    EXPECT_EQ(catalogue.nearest("unknown", "/nowhere", wanted), nullptr);
}

TEST(Catalogue, RecordOfALargeSetFitsIntoTheKeeper) {
    ResidentSet set = a_set("0123456789abcdef");
    set.fingerprint_json = std::string(60'000, 'x');
    EXPECT_LT(keeper_meta_of(set).size(), kKeeperMetaBytesMax);
}

} // namespace
} // namespace berth
