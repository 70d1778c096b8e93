// SPDX-License-Identifier: Apache-2.0
// Goal: a grant loses its top blocks and no sequence notices. Method: a fake model that reads its
// context back from the blocks it was given; a block that is gone holds nothing.
#include "engine_shim/reference/model/block_moves.h"
#include "engine_shim/reference/model/scheduler.h"
#include "tests/engine/fake_step_model.h"

#include <random>

namespace berth::engine {
namespace {

using Moves = std::vector<BlockMove>;
constexpr uint32_t kBlock = FakeStepModel::kBlockTokens;

class Saved final : public SavedKv {
  public:
    Saved(FakeStepModel& model, const std::vector<uint32_t>& blocks) : model_(model) {
        for (const uint32_t block : blocks)
            held_.push_back(model.read_block(block));
    }
    Status bring_back(const std::vector<uint32_t>& blocks) const override {
        for (size_t i = 0; i < held_.size(); ++i)
            model_.write_block(blocks.at(i), held_[i]);
        return {};
    }

  private:
    FakeStepModel& model_;
    std::vector<FakeStepModel::Block> held_;
};

// 8B in bfloat16: 144 KiB a token. At hand: 3.7 us a token to save, as much to bring back.
TEST(SaveOrRecompute, TakesTheCheaperOneIfThereIsTimeToSave) {
    SaveCase one{uint64_t{8192} * 147456, 0, 8192, 20};
    EXPECT_NEAR(save_ms(one), 30.2, 0.1);
    EXPECT_TRUE(is_worth_saving(one, 200)); // 60 ms there and back, 410 ms computed again
    EXPECT_FALSE(is_worth_saving(one, 30)) << "it does not fit";
    one.prefill_tokens_per_ms = 200;
    EXPECT_FALSE(is_worth_saving(one, 200)) << "computed again in 41 ms";
    one.prefill_tokens_per_ms = 20;
    one.fresh_bytes = one.bytes; // pinning: 805 ms
    EXPECT_FALSE(is_worth_saving(one, 1e18));
    one.prefill_tokens_per_ms = 5;
    EXPECT_TRUE(is_worth_saving(one, 1e18));
    one.prefill_tokens_per_ms = 0;
    EXPECT_TRUE(is_worth_saving(one, 1e18)) << "nobody knows better";
}

class BlockMoves : public testing::Test {
  protected:
    void add(const std::string& id, size_t prompt, uint32_t count) {
        GenerationRequest made;
        made.id = id;
        for (size_t i = 0; i < prompt; ++i)
            made.prompt.push_back(static_cast<int32_t>((std::hash<std::string>()(id) + i) % 999));
        made.max_new_tokens = count;
        wanted_[id] = FakeStepModel::expected(made.prompt, count);
        scheduler_.add(std::move(made), [this](const TokenEvent& event) {
            answers_[event.id].push_back(event.token);
            ends_[event.id] += event.finished ? 1 : 0;
        });
    }
    void step() { ASSERT_TRUE(scheduler_.step(model_, {})); }
    void finish() {
        for (int steps = 0; !scheduler_.idle(); ++steps) {
            ASSERT_LT(steps, 1000) << "it does not end";
            step();
        }
    }
    std::vector<uint64_t> running() {
        std::vector<uint64_t> orders;
        for (const Sequence& one : scheduler_.running())
            orders.push_back(one.order);
        return orders;
    }
    Moves move_below(uint32_t limit) {
        Moves done;
        const Status moved =
            engine::move_below(scheduler_, limit, [&](std::span<const BlockMove> moves) -> Status {
                for (const BlockMove& move : moves)
                    model_.write_block(move.to, model_.read_block(move.from));
                done.assign(moves.begin(), moves.end());
                return {};
            });
        EXPECT_TRUE(moved) << moved.error().message;
        return done;
    }
    void shrink(uint32_t blocks, bool save) {
        for (const uint64_t order : who_gives_way(scheduler_, blocks))
            for (const Sequence& one : scheduler_.running())
                if (one.order == order) {
                    std::vector<uint32_t> held = one.blocks;
                    held.resize(scheduler_.blocks_for(one.computed));
                    auto saved = save ? std::make_unique<Saved>(model_, held) : nullptr;
                    scheduler_.suspend(order, std::move(saved));
                    break;
                }
        move_below(blocks);
        const uint32_t before = scheduler_.allocator().total();
        ASSERT_TRUE(scheduler_.allocator().resize(blocks));
        for (uint32_t block = blocks; block < before; ++block)
            model_.forget_block(block);
    }

    Scheduler scheduler_{{8, 8, kBlock, false}, {}};
    FakeStepModel model_;
    std::map<std::string, std::vector<int32_t>> wanted_, answers_;
    std::map<std::string, int> ends_;
};

TEST_F(BlockMoves, LiveBlocksGoDownIntoTheLowestFreeOnes) {
    scheduler_.allocator().resize(12);
    add("first", 9, 2);   // blocks 0 1 2
    add("second", 4, 20); // 3 4
    add("third", 4, 20);  // 5 6
    while (ends_["first"] == 0)
        step();
    EXPECT_EQ(move_below(5), Moves({{5, 0}, {6, 1}}));
    EXPECT_EQ(scheduler_.running().back().blocks, std::vector<uint32_t>({0, 1}));
    EXPECT_EQ(move_below(5), Moves());
    EXPECT_TRUE(scheduler_.allocator().resize(5));
    for (uint32_t block = 5; block < 12; ++block)
        model_.forget_block(block);
    EXPECT_TRUE(scheduler_.allocator().resize(12));
    finish();
    EXPECT_EQ(answers_, wanted_);
}

TEST_F(BlockMoves, ACopyThatFailsMovesNothing) {
    scheduler_.allocator().resize(12);
    add("first", 9, 2);
    add("second", 4, 20);
    while (ends_["first"] == 0)
        step();
    const std::vector<uint32_t> before = scheduler_.running().front().blocks;
    const uint32_t free = scheduler_.allocator().free();
    const Status failed =
        engine::move_below(scheduler_, 3, [](std::span<const BlockMove>) -> Status {
            return fail(ErrorCode::kInternal, "told to fail");
        });
    EXPECT_FALSE(failed);
    EXPECT_EQ(scheduler_.running().front().blocks, before);
    EXPECT_EQ(scheduler_.allocator().free(), free);
}

TEST_F(BlockMoves, TheYoungestGiveWayAndThoseFirstThatTheRestCannotHold) {
    scheduler_.allocator().resize(40);
    add("a", 4, 9);  // 2 blocks
    add("b", 30, 9); // 8 blocks
    add("c", 4, 9);  // 2
    add("d", 4, 9);  // 2
    step();
    ASSERT_EQ(running(), std::vector<uint64_t>({0, 1, 2, 3}));
    EXPECT_TRUE(who_gives_way(scheduler_, 40).empty());
    EXPECT_EQ(who_gives_way(scheduler_, 15), std::vector<uint64_t>({3}));
    EXPECT_EQ(who_gives_way(scheduler_, 9), std::vector<uint64_t>({3, 2, 1}));
    EXPECT_EQ(who_gives_way(scheduler_, 7), std::vector<uint64_t>({1, 3}));
    EXPECT_EQ(who_gives_way(scheduler_, 6), std::vector<uint64_t>({1, 3}));
    EXPECT_EQ(who_gives_way(scheduler_, 2), std::vector<uint64_t>({1, 3, 2}));
    EXPECT_EQ(who_gives_way(scheduler_, 0), std::vector<uint64_t>({0, 1, 2, 3}));
}

TEST_F(BlockMoves, TheLeastIsWhatTheSmallestRequestNeeds) {
    scheduler_.allocator().resize(40);
    EXPECT_EQ(least_blocks(scheduler_), 2U);
    add("a", 30, 9);
    EXPECT_EQ(least_blocks(scheduler_), 8U);
    step();
    add("b", 12, 9);
    EXPECT_EQ(least_blocks(scheduler_), 4U);
    add("c", 1, 9);
    EXPECT_EQ(least_blocks(scheduler_), 2U);
}

TEST_F(BlockMoves, ASavedSequenceGoesOnWhereItWasAndAForgottenOneFromItsPrompt) {
    for (const bool save : {true, false}) {
        scheduler_.allocator().resize(12);
        add("old", 9, 9);
        add("young", 9, 9);
        for (int i = 0; i < 6; ++i)
            step();
        const uint64_t prompts = scheduler_.counts().prompt_tokens;
        shrink(6, save);
        EXPECT_EQ(scheduler_.waiting().size(), 1U);
        EXPECT_EQ(scheduler_.waiting().front().computed > 0, save);
        finish();
        EXPECT_EQ(answers_, wanted_);
        EXPECT_EQ(scheduler_.counts().prompt_tokens == prompts, save);
        answers_.clear();
        ends_.clear();
    }
}

TEST_F(BlockMoves, AtAnySizeAtAnyTimeEverySequenceGetsItsTokens) {
    for (uint32_t seed = 0; seed < 200; ++seed) {
        std::mt19937 random(seed);
        scheduler_.allocator().resize(20 + random() % 20);
        const uint32_t full = scheduler_.allocator().total();
        for (int i = 0; i < 9; ++i)
            add(std::to_string(seed) + "." + std::to_string(i), 1 + random() % 30,
                1 + random() % 25);
        for (int round = 0; !scheduler_.idle(); ++round) {
            ASSERT_LT(round, 5000) << "seed " << seed << " does not end";
            step();
            const uint32_t least = least_blocks(scheduler_);
            const uint32_t total = scheduler_.allocator().total();
            const auto deed = random() % 4;
            if (deed == 0 && least < total)
                shrink(least + static_cast<uint32_t>(random()) % (total - least),
                       random() % 2 == 0);
            else if (deed == 1)
                scheduler_.allocator().resize(total +
                                              static_cast<uint32_t>(random()) % (full - total + 1));
        }
        EXPECT_EQ(scheduler_.allocator().free(), scheduler_.allocator().total());
    }
    EXPECT_EQ(answers_, wanted_);
    for (const auto& [id, ends] : ends_)
        EXPECT_EQ(ends, 1) << id;
}

} // namespace
} // namespace berth::engine
