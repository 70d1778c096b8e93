// SPDX-License-Identifier: Apache-2.0
// Goal: which processes are an engine is found out whole, and a pid that is used again is nobody's
// engine. Method: real processes, shells that start others in groups and sessions of their own.
#include "scheduler/act/process_tree.h"

#include "base/hash.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <poll.h>
#include <thread>
#include <unistd.h>

namespace berth {

namespace {

// Looks until it is right, or too long.
template <typename Look, typename Right>
auto look_until(Look look, Right right) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    auto found = look();
    while (!right(found) && std::chrono::steady_clock::now() < end) {
        ::poll(nullptr, 0, 5);
        found = look();
    }
    return found;
}

class Tree {
  public:
    explicit Tree(const std::string& script, const std::string& token = "") {
        SpawnOptions options;
        options.command = {"sh", "-c", script};
        if (!token.empty())
            options.environment["BERTH_TOKEN"] = token;
        auto spawned = Process::spawn(options);
        EXPECT_TRUE(spawned.has_value());
        if (spawned)
            process = std::move(*spawned);
        query.leader = process.id();
        query.token_sha256 = token.empty() ? "" : sha256_hex(token);
    }
    ~Tree() {
        for (const TreeMember& one : find_tree(query))
            (void)signal_process(one.id, SIGKILL);
        (void)process.signal(SIGKILL);
        EXPECT_TRUE(ended());
    }
    // Reaps it.
    bool ended() {
        pollfd end{process.pidfd(), POLLIN, 0};
        return ::poll(&end, 1, 20'000) == 1 && process.try_wait().has_value();
    }
    // Until as many are found.
    std::vector<TreeMember> members(size_t count) const {
        return look_until([&] { return find_tree(query); },
                          [&](const auto& found) { return found.size() == count; });
    }

    Process process;
    TreeQuery query;
};

} // namespace

TEST(ProcessTree, ASignalReachesTheProcessThatWasMeantAndNoNamesake) {
    Tree tree("exec sleep 600");
    const ProcessId namesake{tree.process.id().pid, tree.process.id().start_ticks + 1};
    const Status refused = signal_process(namesake, SIGKILL);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
    EXPECT_TRUE(is_alive(tree.process.id()));
    EXPECT_TRUE(signal_process(tree.process.id(), SIGKILL).has_value());
    EXPECT_TRUE(tree.ended());
}

TEST(ProcessTree, WhoHasLeftGroupAndSessionIsFoundByWhoStartedIt) {
    // sh; a sleep in its group; setsid's sh in a session of its own, and its sleep.
    Tree tree("sleep 600 & setsid sh -c 'sleep 600 & wait' & wait");
    EXPECT_EQ(tree.members(4).size(), 4U);
    EXPECT_EQ(with_descendants(tree.process.id().pid).size(), 4U);
}

TEST(ProcessTree, WhoseParentHasEndedIsFoundByItsToken) {
    const std::string token = "token of " + std::to_string(::getpid());
    Tree tree("(setsid sleep 600 & ) ; exec sleep 600", token);
    ASSERT_EQ(tree.members(2).size(), 2U);
    // Its parent is in between for a moment.
    for (int look = 0; look < 500 && with_descendants(tree.process.id().pid).size() > 1; ++look)
        std::this_thread::sleep_until(std::chrono::steady_clock::now() +
                                      std::chrono::milliseconds(10));
    EXPECT_EQ(with_descendants(tree.process.id().pid).size(), 1U) << "it is nobody's child here";
    // The leader ends, and its number may be another's: the token alone counts.
    EXPECT_TRUE(tree.process.signal(SIGKILL).has_value());
    EXPECT_TRUE(tree.ended());
    tree.query.group_is_ours = false;
    EXPECT_EQ(tree.members(1).size(), 1U);
    TreeQuery other = tree.query;
    other.token_sha256 = sha256_hex("another");
    EXPECT_TRUE(find_tree(other).empty());
    for (const TreeMember& one : find_tree(tree.query))
        EXPECT_TRUE(signal_process(one.id, SIGKILL).has_value());
    EXPECT_TRUE(tree.members(0).empty());
}

TEST(ProcessTree, AGroupOfAnEarlierOwnerOfTheNumberIsNotOurs) {
    Tree tree("sleep 600 & wait");
    ASSERT_EQ(tree.members(2).size(), 2U);
    // As if the leader had been an earlier process with that pid.
    TreeQuery earlier = tree.query;
    earlier.leader.start_ticks -= 100;
    earlier.group_is_ours = false;
    EXPECT_TRUE(find_tree(earlier).empty());
    // What was seen of it counts by pid and start, not by pid.
    earlier.known = {{tree.process.id().pid, tree.process.id().start_ticks - 100}};
    EXPECT_TRUE(find_tree(earlier).empty());
}

TEST(ProcessTree, StandsStillOnlyOnceItIsStopped) {
    Tree tree("while :; do :; done");
    EXPECT_FALSE(stands_still(tree.process.id().pid));
    ASSERT_TRUE(signal_process(tree.process.id(), SIGSTOP).has_value());
    EXPECT_TRUE(look_until([&] { return stands_still(tree.process.id().pid); },
                           [](bool still) { return still; }));
    ASSERT_TRUE(signal_process(tree.process.id(), SIGCONT).has_value());
    EXPECT_FALSE(look_until([&] { return stands_still(tree.process.id().pid); },
                            [](bool still) { return !still; }));
}

} // namespace berth
