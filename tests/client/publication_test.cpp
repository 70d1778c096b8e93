// SPDX-License-Identifier: Apache-2.0
// Goal: one who finds somebody else's set where it wanted to hand over its own takes no other one
// for it, and says that its own bytes are gone. Method: a real Client against a scripted berthd.
#include "engine_shim/client/client.h"
#include "tests/client/fake_daemon.h"

#include <gmock/gmock.h>

#include <future>

namespace berth {
namespace {

using testing::FakeDaemon;
using ::testing::HasSubstr;
using testing::must;

class PublicationTest : public ::testing::Test {
  protected:
    PublicationTest() {
        ClientOptions given;
        given.socket = daemon_.path();
        given.device = "host-0";
        auto connecting =
            std::async(std::launch::async, [&] { return Client::connect(std::move(given)); });
        daemon_.accept_and_welcome({});
        client_ = must(connecting.get());
    }
    ~PublicationTest() override {
        publication_.reset();
        client_.reset();
    }
    // What make_set() holds.
    static PublishRequest request() {
        PublishRequest made;
        made.model = "tiny";
        made.producer_name = "test";
        made.producer_version = "1";
        auto declare = [&](const char* name, DType dtype, std::vector<uint64_t> shape) {
            PublishTensor& one = made.tensors.emplace_back();
            one.name = name;
            one.dtype = dtype;
            one.shape = std::move(shape);
        };
        declare("a.weight", DType::kF32, {2, 3});
        declare("b.bias", DType::kBF16, {4});
        declare("tied.weight", DType::kF32, {2, 3});
        made.tensors[2].alias_of = "a.weight";
        return made;
    }
    protocol::Publish begin(const PublishRequest& wanted) {
        auto publishing = std::async(std::launch::async, [&] { return client_->publish(wanted); });
        auto asked = daemon_.expect<protocol::Publish>();
        protocol::Go go;
        go.id = asked.id;
        daemon_.send(go);
        publication_ = must(publishing.get()).publication;
        must(publication_->filled("a.weight"));
        must(publication_->filled("b.bias"));
        return asked;
    }
    // Seals; berthd knows of no such publication and hands out `set` instead.
    Result<WeightSet> seal_and_be_given(const testing::SealedSet& set) {
        auto sealing = std::async(std::launch::async, [&] { return publication_->seal(); });
        daemon_.refuse(daemon_.expect<protocol::Sealed>().id,
                       {ErrorCode::kFailedPrecondition, "no such publication", "NotPublishing", 0});
        auto attach = daemon_.expect<protocol::Attach>();
        EXPECT_EQ(attach.weight_set, set.fingerprint.substr(0, 16));
        daemon_.send_set(attach.id, set);
        return sealing.get();
    }

    testing::ScratchFolder folder_;
    FakeDaemon daemon_{folder_.path("berthd.sock")};
    std::unique_ptr<Device> device_ = must(open_device("host-0"));
    std::unique_ptr<Client> client_;
    std::unique_ptr<Publication> publication_;
};

TEST_F(PublicationTest, AnothersSetThatIsWhatWasDeclaredIsTakenAndTheOwnBytesAreLetGo) {
    auto asked = begin(request());
    WeightSet set = must(seal_and_be_given(testing::make_set(*device_, asked.fingerprint)));
    EXPECT_EQ(set.fingerprint(), asked.fingerprint);
    EXPECT_EQ(daemon_.expect<protocol::Release>().fingerprint, asked.fingerprint);
}

TEST_F(PublicationTest, AnothersSetThatIsNotWhatWasDeclaredIsRefusedByName) {
    PublishRequest wanted = request();
    wanted.tensors[1].dtype = DType::kF16;
    auto asked = begin(wanted);
    auto refused = seal_and_be_given(testing::make_set(*device_, asked.fingerprint));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, "DeclaredOther");
    EXPECT_THAT(refused.error().message, HasSubstr("'b.bias'"));
    EXPECT_EQ(daemon_.expect<protocol::Release>().fingerprint, asked.fingerprint);
}

// One who seals while berthd is away asks as soon as it is back: not before it has been told what
// is to be sealed, or it would be sent to wait for a publisher that it is itself.
TEST_F(PublicationTest, ASealThatWaitedForBerthdComesAfterWhatIsHeld) {
    auto asked = begin(request());
    auto sealing = std::async(std::launch::async, [&] { return publication_->seal(); });
    daemon_.expect<protocol::Sealed>();
    for (int death = 0; death < 4; ++death) {
        daemon_.die();
        daemon_.listen();
        daemon_.accept_and_welcome({});
        const auto held = daemon_.expect<protocol::Publish>();
        EXPECT_TRUE(held.held);
        EXPECT_EQ(held.fingerprint, asked.fingerprint);
        EXPECT_EQ(daemon_.expect<protocol::Sealed>().fingerprint, asked.fingerprint);
    }
    daemon_.die();
    auto refused = sealing.get(); // as often as it tries
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, "BerthdUnstable");
}

TEST_F(PublicationTest, WhatIsGivenUpWhileBerthdIsAwayIsSaidWhenItIsBack) {
    auto asked = begin(request());
    daemon_.die();
    publication_.reset();
    daemon_.listen();
    daemon_.accept_and_welcome({});
    EXPECT_EQ(daemon_.expect<protocol::Release>().fingerprint, asked.fingerprint);
}

} // namespace
} // namespace berth
