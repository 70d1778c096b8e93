// SPDX-License-Identifier: Apache-2.0
// Goal: whoever reads the records at any moment of a start knows the token that its process has,
// and a start that was given up is not made after all. Method: starts and states as they follow
// each other, with no process.
#include "scheduler/act/start_book.h"

#include "base/hash.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

const node::InstanceName kName("chat");

node::StartProcess start_of(uint64_t number, uint32_t ranks = 1) {
    node::StartProcess start;
    start.instance = kName;
    start.number = number;
    start.ranks = ranks;
    return start;
}

class StartBookTest : public testing::Test {
  protected:
    StartBookTest() {
        node::Instance i;
        i.name = kName;
        i.state = node::InstanceState::kStarting;
        i.process_alive = true;
        i.starts = 1;
        state_.instances[kName] = i;
    }
    node::Instance& instance() { return state_.instances.at(kName); }
    node::InstanceRecovered record() {
        node::InstanceRecovered kept;
        kept.name = kName;
        kept.token_sha256 = instance().token_sha256;
        kept.others = instance().others;
        book_.complete(kept, instance());
        return kept;
    }

    node::NodeState state_;
    StartBook book_;
};

TEST_F(StartBookTest, ARecordHasTheTokensUntilTheNodeKnowsTheProcess) {
    const node::StartProcess start = start_of(1, 2);
    book_.announce(start);
    const std::vector<std::string>* tokens = book_.tokens_of(start);
    ASSERT_NE(tokens, nullptr);
    ASSERT_EQ(tokens->size(), 2U);
    const std::vector<std::string> hashes{sha256_hex(tokens->front()), sha256_hex(tokens->back())};
    // However often it is written, also after the start has been carried out.
    for (int n = 0; n < 3; ++n) {
        EXPECT_EQ(record().token_sha256, hashes[0]);
        ASSERT_EQ(record().others.size(), 1U);
        EXPECT_EQ(record().others[0].token_sha256, hashes[1]);
    }
    instance().process = {77, 5};
    instance().token_sha256 = hashes[0];
    instance().others = {{{78, 6}, hashes[1]}};
    EXPECT_EQ(record().token_sha256, hashes[0]);
    EXPECT_EQ(record().others, instance().others) << "with the pid that is known now";
    EXPECT_EQ(book_.tokens_of(start), nullptr);
}

TEST_F(StartBookTest, AnEndedStartLeavesNoToken) {
    book_.announce(start_of(1));
    instance().process_alive = false;
    EXPECT_EQ(record().token_sha256, "");
    EXPECT_EQ(book_.tokens_of(start_of(1)), nullptr);
}

TEST_F(StartBookTest, ALaterStartsTokensAreNoEarlierOnes) {
    book_.announce(start_of(1));
    book_.announce(start_of(2));
    EXPECT_EQ(book_.tokens_of(start_of(1)), nullptr);
    EXPECT_EQ(record().token_sha256, "") << "of before the second start";
    instance().starts = 2;
    EXPECT_EQ(record().token_sha256, sha256_hex(book_.tokens_of(start_of(2))->front()));
}

TEST_F(StartBookTest, WhatWaitsIsTakenOnceOrWithdrawn) {
    book_.wait(start_of(1));
    book_.wait(start_of(2)); // its document has changed meanwhile
    const std::vector<node::StartProcess> taken = book_.take_waiting();
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_EQ(taken[0].number, 2U);
    EXPECT_TRUE(book_.take_waiting().empty());
    book_.wait(start_of(3));
    EXPECT_EQ(book_.withdraw(kName).value().number, 3U);
    EXPECT_FALSE(book_.withdraw(kName));
    book_.wait(start_of(4));
    book_.forget(kName);
    EXPECT_TRUE(book_.take_waiting().empty());
}

TEST_F(StartBookTest, AStartIsDueWhileItsInstanceWantsIt) {
    EXPECT_TRUE(is_due(state_, kName, 1));
    EXPECT_FALSE(is_due(state_, kName, 2));
    instance().substate = "Killed";
    EXPECT_FALSE(is_due(state_, kName, 1));
    EXPECT_TRUE(is_expected(state_, kName, 1)) << "its failure is waited for";
    instance().substate.clear();
    instance().state = node::InstanceState::kPreempting;
    EXPECT_FALSE(is_due(state_, kName, 1));
    instance().process_alive = false;
    EXPECT_FALSE(is_expected(state_, kName, 1));
    state_.instances.clear();
    EXPECT_FALSE(is_due(state_, kName, 1));
}

} // namespace
} // namespace berth
