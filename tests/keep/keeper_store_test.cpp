// SPDX-License-Identifier: Apache-2.0
// Goal: the keeper's answers and limits. Method: requests to the store, without a process.
#include "cache/keep/keeper_store.h"

#include "base/json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fcntl.h>

namespace berth {
namespace {

using ::testing::HasSubstr;

UniqueFd null_fd() {
    return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

Packet request(const std::string& payload, size_t fds = 0) {
    Packet packet;
    packet.payload = payload;
    for (size_t i = 0; i < fds; ++i)
        packet.fds.push_back(null_fd());
    return packet;
}

Packet put(const std::string& key, size_t fds, const std::string& meta = "{}") {
    return request(fmt::format(R"({{"v":1,"id":9,"op":"put","key":"{}","meta":{}}})", key, meta),
                   fds);
}

bool is_ok(const Packet& reply) {
    return json::parse(reply.payload, "reply")->at("ok").as_bool();
}

Error error_of(const Packet& reply) {
    auto body = json::parse(reply.payload, "reply");
    EXPECT_FALSE(body->at("ok").as_bool()) << reply.payload;
    return json::to_error(body->at("error"));
}

TEST(KeeperStore, AnswersEveryMalformedMessageWithAnError) {
    KeeperStore store(100);
    const std::string long_key(kKeeperKeyBytesMax + 1, 'k');
    for (const std::string& payload :
         std::vector<std::string>{"",
                                  "x",
                                  "{",
                                  "[]",
                                  "7",
                                  "null",
                                  "{}",
                                  R"({"v":1})",
                                  R"({"v":2,"op":"ping"})",
                                  R"({"v":1,"op":"steal"})",
                                  R"({"v":1,"op":7})",
                                  R"({"v":"1","op":"ping"})",
                                  R"({"v":1,"op":"put","key":"k"})",
                                  R"({"v":1,"op":"put","key":"k","meta":[]})",
                                  R"({"v":1,"op":"put","key":"","meta":{}})",
                                  R"({"v":1,"op":"put","meta":{}})",
                                  R"({"v":1,"op":"get"})",
                                  R"({"v":1,"op":"get","key":7})",
                                  R"({"v":1,"op":"drop","key":"nothing"})",
                                  R"({"v":1,"op":"ping","id":-1})",
                                  R"({"v":1,"op":"put","key":")" + long_key + R"(","meta":{}})",
                                  std::string(100'000, '['),
                                  std::string("\xff\xfe\0{}", 5)}) {
        Packet reply = store.handle(request(payload, 3));
        EXPECT_FALSE(error_of(reply).message.empty()) << payload.substr(0, 80);
        EXPECT_TRUE(reply.fds.empty());
    }
    EXPECT_EQ(store.entries(), 0U);
    EXPECT_EQ(store.descriptors(), 0U);
    EXPECT_TRUE(is_ok(store.handle(request(R"({"v":1,"op":"ping","new":"field"})"))));
}

TEST(KeeperStore, SaysWhichVersionItSpeaks) {
    KeeperStore store(100);
    Error error = error_of(store.handle(request(R"({"v":7,"id":3,"op":"ping"})")));
    EXPECT_EQ(error.code, ErrorCode::kMismatch);
    EXPECT_THAT(error.message, HasSubstr("version 7"));
}

TEST(KeeperStore, RefusesWhatIsOverItsLimitsByName) {
    KeeperStore store(40);
    EXPECT_EQ(error_of(store.handle(put("k", kKeeperFdsMax + 1))).code,
              ErrorCode::kInvalidArgument);
    std::string big = fmt::format(R"({{"x":"{}"}})", std::string(kKeeperMetaBytesMax, 'x'));
    EXPECT_EQ(error_of(store.handle(put("k", 1, big))).code, ErrorCode::kInvalidArgument);
    ASSERT_TRUE(is_ok(store.handle(put("a", 16))));
    ASSERT_TRUE(is_ok(store.handle(put("b", 16))));
    Error error = error_of(store.handle(put("c", 9)));
    EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(error.reason, "NoDescriptors");
    EXPECT_EQ(store.descriptors(), 32U);
    EXPECT_TRUE(is_ok(store.handle(put("c", 8))));
    // A replacement that needs no more than it frees fits into a full keeper.
    EXPECT_TRUE(is_ok(store.handle(put("a", 16))));
    EXPECT_EQ(store.descriptors(), 40U);
}

TEST(KeeperStore, HoldsSoManyEntriesAndNoMore) {
    KeeperStore store(100);
    for (size_t i = 0; i < kKeeperEntriesMax; ++i)
        ASSERT_TRUE(is_ok(store.handle(put(fmt::format("k{:05}", i), 0))));
    EXPECT_EQ(error_of(store.handle(put("one-more", 0))).reason, "KeeperFull");
    EXPECT_TRUE(is_ok(store.handle(put("k00000", 1))));
}

TEST(KeeperStore, PagesOfAListFitIntoMessagesAndMissNothing) {
    KeeperStore store(100);
    constexpr size_t kEntries = 150;
    for (size_t i = 0; i < kEntries; ++i) {
        size_t length = i == 70 ? kKeeperMetaBytesMax - 10 : 3000;
        ASSERT_TRUE(
            is_ok(store.handle(put(fmt::format("k{:03}", i), 0,
                                   fmt::format(R"({{"x":"{}"}})", std::string(length, 'x'))))));
    }
    std::string after;
    std::vector<std::string> keys;
    for (bool more = true; more;) {
        Packet reply =
            store.handle(request(fmt::format(R"({{"v":1,"op":"list","after":"{}"}})", after)));
        ASSERT_LE(reply.payload.size(), kPacketBytesMax);
        auto body = json::parse(reply.payload, "reply");
        for (const auto& entry : body->at("entries").as_array())
            keys.emplace_back(entry.at("key").as_string());
        after = keys.back();
        more = body->at("more").as_bool();
    }
    ASSERT_EQ(keys.size(), kEntries);
    EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
}

} // namespace
} // namespace berth
