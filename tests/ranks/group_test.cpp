// SPDX-License-Identifier: Apache-2.0
// c10d's groups as the decoder uses them, a thread for each rank.
#include "engine_shim/reference/ranks/process_group.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <future>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace berth::engine {
namespace {

using ::testing::HasSubstr;

constexpr Nanoseconds kPatience = std::chrono::seconds(60);

// A folder for one test's rendezvous.
class Group : public ::testing::Test {
  protected:
    // torch notes each collective in one table a process, and several groups of one process, which
    // no engine has, would write to it at once.
    static void SetUpTestSuite() { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1); }

    void SetUp() override {
        std::string name = (std::filesystem::temp_directory_path() / "berth-ranks-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    // What each rank makes of `compute`, in the order of ranks.
    template <typename Compute>
    std::vector<at::Tensor> on_ranks(uint32_t ranks, Compute compute) {
        const std::string where = "file://" + (folder_ / "rendezvous").string();
        std::vector<std::future<at::Tensor>> made;
        for (uint32_t rank = 0; rank < ranks; ++rank)
            made.push_back(std::async(std::launch::async, [=] {
                auto store = open_rank_store(where, rank, ranks, kPatience);
                EXPECT_TRUE(store) << store.error().message;
                auto group = connect_ranks(**store, {rank, ranks}, at::kCPU, false);
                EXPECT_TRUE(group) << group.error().message;
                const c10::InferenceMode inference;
                return compute(**group, rank);
            }));
        std::vector<at::Tensor> results;
        for (auto& one : made)
            results.push_back(one.get());
        return results;
    }

    std::filesystem::path folder_;
};

TEST_F(Group, SumsPartsOfBothTypesOnAllRanks) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        std::filesystem::remove(folder_ / "rendezvous");
        const auto sums = on_ranks(4, [type](RankGroup& group, uint32_t rank) {
            return group.sum(at::full({3, 5}, rank + 1, at::TensorOptions().dtype(type)));
        });
        for (const at::Tensor& sum : sums)
            EXPECT_TRUE(sum.equal(at::full({3, 5}, 10, at::TensorOptions().dtype(type))));
    }
}

TEST_F(Group, LaysPartsSideBySideInTheOrderOfRanks) {
    const auto rows = on_ranks(3, [](RankGroup& group, uint32_t rank) {
        return group.side_by_side(
            at::arange(2).view({1, 2}).add(10 * rank).to(at::kFloat).repeat({2, 1}));
    });
    const at::Tensor expected =
        at::tensor({0.0F, 1.0F, 10.0F, 11.0F, 20.0F, 21.0F}).view({1, 6}).repeat({2, 1});
    for (const at::Tensor& one : rows)
        EXPECT_TRUE(one.equal(expected)) << one;
}

TEST_F(Group, TheWishOfOneRankIsHeardByAllBesideTheSum) {
    for (const bool wishes : {false, true}) {
        std::filesystem::remove(folder_ / "rendezvous");
        const auto heard = on_ranks(3, [wishes](RankGroup& group, uint32_t rank) {
            group.set_wish([=] { return wishes && rank == 1; });
            bool stand = false;
            const at::Tensor sum = group.sum_and_ask(at::ones({2, 3}), stand);
            EXPECT_TRUE(sum.equal(at::full({2, 3}, 3.0F)));
            return at::full({1}, stand);
        });
        for (const at::Tensor& one : heard)
            EXPECT_EQ(one.item<bool>(), wishes);
    }
}

TEST_F(Group, ARankThatIsGoneIsAnErrorForTheOthersAndNoWait) {
    const auto failed = on_ranks(2, [](RankGroup& group, uint32_t rank) {
        (void)group.sum(at::ones({1})); // both are there
        if (rank == 1)
            return at::full({1}, true);
        try {
            (void)group.sum(at::ones({1}));
        } catch (const std::exception&) {
            return at::full({1}, true);
        }
        return at::full({1}, false);
    });
    EXPECT_TRUE(failed[0].item<bool>());
}

TEST(RankStore, RefusesWhatIsNoRendezvous) {
    for (const char* wrong : {"", "/run/x", "file://", "file://x", "tcp://host", "tcp://host:x"}) {
        const auto opened = open_rank_store(wrong, 0, 2, kPatience);
        ASSERT_FALSE(opened) << wrong;
        EXPECT_THAT(opened.error().message, HasSubstr("expected file:///PATH or tcp://HOST:PORT"));
    }
}

// One that was free a moment ago.
uint16_t free_port() {
    const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(probe, reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    ::close(probe);
    return ntohs(address.sin_port);
}

TEST(RankStore, RanksMeetOverTcpToo) {
    const std::string where = "tcp://127.0.0.1:" + std::to_string(free_port());
    auto server = open_rank_store(where, 0, 2, kPatience);
    ASSERT_TRUE(server) << server.error().message;
    auto other = open_rank_store(where, 1, 2, kPatience);
    ASSERT_TRUE(other) << other.error().message;
    ASSERT_TRUE((*server)->set("name", "text"));
    EXPECT_EQ((*other)->get("name", kPatience).value(), "text");
}

} // namespace
} // namespace berth::engine
