// SPDX-License-Identifier: Apache-2.0
// Goal: what one side writes the other reads, and what is no message is refused by name.
#include "engine_shim/protocol/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::protocol {
namespace {

using ::testing::HasSubstr;

template <typename M>
M round_trip(const M& message) {
    auto read = decode(encode(message));
    EXPECT_TRUE(read) << read.error().message;
    return std::get<M>(*read);
}

TEST(Messages, EveryTypeSurvivesTheWire) {
    // Each alternative's own encoding is its identity: reading and writing again changes nothing.
    std::vector<Message> all = {Hello{},       Welcome{}, Attach{},      Progress{}, Attached{},
                                State{},       Command{}, CommandDone{}, Report{},   Failed{},
                                Planned{},     Go{},      Sealed{},      Kept{},     Publish{},
                                PrivateLoad{}, Release{}, Canary{}};
    ASSERT_EQ(all.size(), std::variant_size_v<Message>);
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].index(), i);
        auto read = decode(encode(all[i]));
        ASSERT_TRUE(read) << encode(all[i]) << ": " << read.error().message;
        EXPECT_EQ(read->index(), i);
        EXPECT_EQ(encode(*read), encode(all[i]));
    }
}

TEST(Messages, ValuesArriveAsTheyWereSent) {
    Attach attach;
    attach.id = 7;
    attach.model = "smollm2";
    attach.environment = {"cuda", "9.0", "13.0", "berth-1", "any"};
    attach.wait = false;
    Attach read = round_trip(attach);
    EXPECT_EQ(read.id, 7U);
    EXPECT_EQ(read.model, "smollm2");
    EXPECT_EQ(read.environment, attach.environment);
    EXPECT_FALSE(read.wait);

    Command command{9, CommandKind::kOffload, UINT64_MAX, -5, "Save", false};
    Command back = round_trip(command);
    EXPECT_EQ(back.kind, CommandKind::kOffload);
    EXPECT_EQ(back.grant_bytes, UINT64_MAX);
    EXPECT_EQ(back.grace_ms, -5);
    EXPECT_FALSE(back.canary);

    for (const CommandKind kind : {CommandKind::kShrink, CommandKind::kGrow}) {
        EXPECT_EQ(round_trip(Command{1, kind, 4096, 0, "Drop", true}).kind, kind);
    }
    EXPECT_EQ(to_string(CommandKind::kShrink), "Shrink");
    EXPECT_EQ(to_string(CommandKind::kGrow), "Grow");

    CommandDone done{
        9, Error{ErrorCode::kDeadlineExceeded, "too late", "Late", 0}, 1, 2, 3, 4, {{"x", 1.5}}};
    CommandDone done_back = round_trip(done);
    ASSERT_TRUE(done_back.error);
    EXPECT_EQ(done_back.error->code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(done_back.error->reason, "Late");
    EXPECT_EQ(done_back.saved_bytes, 3U);
    EXPECT_EQ(done_back.moved_bytes, 4U);
    EXPECT_EQ(done_back.phases.at("x"), 1.5);
    EXPECT_FALSE(round_trip(CommandDone{}).error);
}

TEST(Messages, UnknownFieldsAreIgnored) {
    auto read = decode(R"({"v":1,"type":"go","id":3,"later":{"deep":[1]}})");
    ASSERT_TRUE(read);
    EXPECT_EQ(std::get<Go>(*read).id, 3U);
}

TEST(Messages, WrongTypesAreRefusedWithTheFieldsName) {
    auto refused = [](const char* text) {
        auto read = decode(text);
        EXPECT_FALSE(read) << text;
        return read ? std::string() : read.error().message;
    };
    EXPECT_THAT(refused(R"({"v":1,"type":"hello","pid":"one"})"), HasSubstr("'pid'"));
    EXPECT_THAT(refused(R"({"v":1,"type":"hello","pid":4294967296})"), HasSubstr("'pid'"));
    EXPECT_THAT(refused(R"({"v":1,"type":"command","kind":"Dance"})"), HasSubstr("Dance"));
    EXPECT_THAT(refused(R"({"v":1,"type":"command"})"), HasSubstr("'kind'"));
    EXPECT_THAT(refused(R"({"v":1,"type":"attached","segment_bytes":[1,-1]})"),
                HasSubstr("'segment_bytes'"));
    EXPECT_THAT(refused(R"({"v":1,"type":"attach","environment":{"layout":3}})"),
                HasSubstr("'layout'"));
    EXPECT_THAT(refused(R"({"v":1,"type":"failed"})"), HasSubstr("'error'"));
    EXPECT_THAT(refused(R"({"v":1,"type":"sing"})"), HasSubstr("'sing'"));
    EXPECT_THAT(refused("[]"), HasSubstr("expected an object"));
    EXPECT_THAT(refused("{"), HasSubstr("not valid JSON"));
}

TEST(Messages, WhatAnEnginePublishesArrivesAsItWasSaid) {
    Publish publish;
    publish.id = 3;
    publish.fingerprint_json = R"({"a":"\u00e9"})";
    publish.segment_bytes = {1, UINT64_MAX};
    publish.tensors = 9;
    publish.held = true;
    Publish read = round_trip(publish);
    EXPECT_EQ(read.fingerprint_json, publish.fingerprint_json);
    EXPECT_EQ(read.segment_bytes, publish.segment_bytes);
    EXPECT_EQ(read.tensors, 9U);
    EXPECT_TRUE(read.held);
    EXPECT_FALSE(read.find_only);
    Attached attached;
    attached.verify_canary = true;
    EXPECT_TRUE(round_trip(attached).verify_canary);
}

TEST(Messages, AnotherVersionIsAMismatch) {
    auto read = decode(R"({"v":2,"type":"go","id":1})");
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::kMismatch);
}

TEST(Messages, BytesThatAreNoUtf8DoNotSpoilAMessage) {
    Attach attach;
    attach.path = "/models/\xff\xfe\xe2\x82";
    EXPECT_EQ(round_trip(attach).path, "/models/\uFFFD\uFFFD\uFFFD\uFFFD");
    attach.path = "/models/gr\u00fc\u00df \U0001F600";
    EXPECT_EQ(round_trip(attach).path, attach.path);
}

TEST(Messages, AnErrorOfAnyLengthFitsAPacket) {
    Failed failed{1, Error{ErrorCode::kMismatch, std::string(1 << 20, 'x'), "", 0}};
    EXPECT_LT(encode(failed).size(), kPacketBytesMax);
}

TEST(Messages, AnEnvironmentIsReadBackFromItsText) {
    Environment environment{"host", "", "", "berth-1", "any"};
    auto read = environment_from_json(environment_json(environment));
    ASSERT_TRUE(read);
    EXPECT_EQ(*read, environment);
    EXPECT_FALSE(environment_from_json("[1]"));
}

} // namespace
} // namespace berth::protocol
