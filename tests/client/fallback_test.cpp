// SPDX-License-Identifier: Apache-2.0
// Goal: where no shared set may be used an engine has its own or none, as it was told, and berthd
// knows of it. Method: a real Client and a real berth-loader against a scripted berthd.
#include "base/process.h"
#include "engine_shim/client/client.h"
#include "tests/client/fake_daemon.h"
#include "tests/weights/test_checkpoint.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <future>

namespace berth {
namespace {

using testing::FakeDaemon;
using ::testing::HasSubstr;
using testing::must;

const Error kDiffers{ErrorCode::kMismatch, "dtype  F32  BF16", "FingerprintMismatch", 0};

class FallbackTest : public ::testing::Test {
  protected:
    FallbackTest() {
        checkpoint_.write_single();
        ::setenv("BERTH_LOADER", (program_directory() + "/../bin/berth-loader").c_str(), 1);
    }
    void connect(Fallback fallback, const std::string& instance) {
        ClientOptions given;
        given.socket = daemon_.path();
        given.fallback = fallback;
        given.device = "host-0";
        given.model_path = checkpoint_.path();
        given.instance = instance;
        given.token = instance;
        protocol::Welcome welcome;
        welcome.instance = instance;
        welcome.device = "host-0";
        welcome.model_path = checkpoint_.path();
        auto connecting =
            std::async(std::launch::async, [&] { return Client::connect(std::move(given)); });
        daemon_.accept_and_welcome(welcome);
        client_ = must(connecting.get());
    }
    std::future<Result<WeightSet>> attach() {
        auto attaching = std::async(std::launch::async, [&] { return client_->attach({}); });
        daemon_.refuse(daemon_.expect<protocol::Attach>().id, kDiffers);
        return attaching;
    }

    testing::ScratchFolder folder_;
    FakeDaemon daemon_{folder_.path("berthd.sock")};
    testing::TestCheckpoint checkpoint_;
    std::unique_ptr<Client> client_;
};

TEST_F(FallbackTest, AMismatchIsLoadedFromDiskAfterBerthdHasCountedIt) {
    connect(Fallback::kDisk, "served");
    auto attaching = attach();
    auto asked = daemon_.expect<protocol::PrivateLoad>();
    EXPECT_EQ(asked.reason, "FingerprintMismatch");
    EXPECT_THAT(asked.message, HasSubstr("BF16"));
    EXPECT_GT(asked.segment_bytes.at(0), 0U);
    EXPECT_EQ(asked.fingerprint.size(), 64U);
    protocol::Go go;
    go.id = asked.id;
    daemon_.send(go);
    WeightSet own = must(attaching.get());
    EXPECT_EQ(own.fingerprint(), asked.fingerprint);
    EXPECT_EQ(own.private_reason(), "FingerprintMismatch");
    EXPECT_EQ(daemon_.expect<protocol::State>().weights, "private (FingerprintMismatch)");
}

TEST_F(FallbackTest, ANewBerthdIsToldWhatThisProcessHolds) {
    connect(Fallback::kDisk, "served");
    auto attaching = attach();
    auto asked = daemon_.expect<protocol::PrivateLoad>();
    protocol::Go go;
    go.id = asked.id;
    daemon_.send(go);
    WeightSet own = must(attaching.get());
    daemon_.die();
    daemon_.listen();
    daemon_.accept_and_welcome({});
    auto again = daemon_.expect<protocol::PrivateLoad>();
    EXPECT_TRUE(again.held);
    EXPECT_EQ(again.fingerprint, asked.fingerprint);
}

TEST_F(FallbackTest, BerthdIsToldWhenTheLastOfAnOwnSetIsDroppedAndNotBefore) {
    connect(Fallback::kDisk, "served");
    auto attaching = attach();
    auto asked = daemon_.expect<protocol::PrivateLoad>();
    protocol::Go go;
    go.id = asked.id;
    daemon_.send(go);
    auto own = std::make_unique<WeightSet>(must(attaching.get()));
    EXPECT_EQ(daemon_.expect<protocol::State>().weights, "private (FingerprintMismatch)");
    auto second = std::make_unique<WeightSet>(*own);
    own.reset();
    client_->set_phase("between", 1);
    EXPECT_TRUE(daemon_.expect<protocol::State>().phases.contains("between"));
    second.reset();
    EXPECT_EQ(daemon_.expect<protocol::Release>().fingerprint, asked.fingerprint);
    daemon_.die();
    daemon_.listen();
    daemon_.accept_and_welcome({});
    // Of it nothing is said again but that it is gone, which may have been lost.
    EXPECT_EQ(daemon_.expect<protocol::Release>().fingerprint, asked.fingerprint);
    EXPECT_EQ(daemon_.expect<protocol::State>().weights, "private (FingerprintMismatch)");
}

TEST_F(FallbackTest, ALoadersOverheadIsGivenBackAtItsEndAndWhatCannotBeMappedThen) {
    ::setenv("BERTH_LOADER", (program_directory() + "/played-loader").c_str(), 1);
    connect(Fallback::kDisk, "served");
    auto attaching = attach();
    auto asked = daemon_.expect<protocol::PrivateLoad>();
    EXPECT_EQ(asked.device_overhead_bytes, 1000U);
    EXPECT_FALSE(asked.held);
    protocol::Go go;
    go.id = asked.id;
    daemon_.send(go);
    auto held = daemon_.expect<protocol::PrivateLoad>();
    EXPECT_TRUE(held.held);
    EXPECT_EQ(held.device_overhead_bytes, 0U);
    EXPECT_EQ(held.fingerprint, asked.fingerprint);
    auto failed = attaching.get();
    ASSERT_FALSE(failed);
    EXPECT_THAT(failed.error().message, HasSubstr("1 descriptors instead of 2"));
    EXPECT_EQ(daemon_.expect<protocol::Release>().fingerprint, asked.fingerprint);
}

TEST_F(FallbackTest, WhatBerthdHasNoRoomForIsNotLoaded) {
    connect(Fallback::kDisk, "served");
    auto attaching = attach();
    auto asked = daemon_.expect<protocol::PrivateLoad>();
    daemon_.refuse(asked.id, {ErrorCode::kResourceExhausted, "needs 1, 0 are free", "", 0});
    auto refused = attaching.get();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_THAT(refused.error().message, HasSubstr("0 are free"));
    EXPECT_THAT(refused.error().message, HasSubstr("BF16"));
}

TEST_F(FallbackTest, OneWhoWasToldToFailFails) {
    connect(Fallback::kFail, "served");
    auto refused = attach().get();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kMismatch);
}

TEST_F(FallbackTest, ASetThatIsAskedForByIdIsNeverReplaced) {
    connect(Fallback::kDisk, "");
    AttachRequest request;
    request.weight_set = "0123456789abcdef";
    auto attaching = std::async(std::launch::async, [&] { return client_->attach(request); });
    daemon_.refuse(daemon_.expect<protocol::Attach>().id, kDiffers);
    EXPECT_FALSE(attaching.get());
}

TEST_F(FallbackTest, AnAbsentDaemonIsDoneWithoutByGuestsOnly) {
    ClientOptions given;
    given.socket = folder_.path("nobody.sock");
    given.mode = AttachMode::kDaemon;
    given.device = "host-0";
    given.model_path = checkpoint_.path();
    ::unsetenv("BERTH_CONFIG");
    auto alone = must(Client::connect(given));
    EXPECT_EQ(alone->mode(), AttachMode::kOff);
    WeightSet own = must(alone->attach({}));
    EXPECT_EQ(own.private_reason(), "DaemonAbsent");
    EXPECT_THAT(alone->publish({}).error().message, HasSubstr("BERTH_CONFIG"));
    given.instance = given.token = "served";
    given.connect_timeout = std::chrono::milliseconds(100);
    EXPECT_FALSE(Client::connect(given));
}

} // namespace
} // namespace berth
