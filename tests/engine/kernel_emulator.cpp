// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/kernel_emulator.h"

#include <csetjmp>
#include <memory>
#include <vector>

#include <ucontext.h>

namespace berth::test {

Index3 emulated_thread;
Index3 emulated_block;
Index3 emulated_threads;
Index3 emulated_blocks;

namespace {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr uint32_t kWarp = 32;

// Who waits for whom: all of `size` fibres arrive before any goes on.
struct Meeting {
    uint32_t size = 0;
    uint32_t arrived = 0;
    uint64_t round = 0;
};

struct Fibre {
    ucontext_t context{}; // to begin with
    std::jmp_buf place{}; // from then on: a switch without a system call
    std::unique_ptr<std::byte[]> stack;
    bool begun = false;
    bool ended = false;
};

struct Group {
    std::vector<Fibre> fibres;
    Meeting all;
    std::vector<Meeting> warps;
    std::vector<uint64_t> given; // by each thread to its warp
    std::vector<Operands> operands;
    const std::function<void()>* kernel = nullptr;
    std::jmp_buf scheduler{};
    uint32_t current = 0;
};

Group* group = nullptr;

void give_way() {
    if (_setjmp(group->fibres[group->current].place) == 0)
        _longjmp(group->scheduler, 1);
}

void go_on(Fibre& fibre) {
    if (_setjmp(group->scheduler) != 0)
        return;
    if (fibre.begun)
        _longjmp(fibre.place, 1);
    fibre.begun = true;
    ::setcontext(&fibre.context);
}

void meet(Meeting& meeting) {
    const uint64_t round = meeting.round;
    if (++meeting.arrived == meeting.size) {
        meeting.arrived = 0;
        ++meeting.round;
    }
    while (meeting.round == round)
        give_way();
}

void fibre_main() {
    (*group->kernel)();
    group->fibres[group->current].ended = true;
    give_way();
}

void run_group(uint32_t threads) {
    for (uint32_t thread = 0; thread < threads; ++thread) {
        Fibre& fibre = group->fibres[thread];
        fibre.begun = fibre.ended = false;
        ::getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.get();
        fibre.context.uc_stack.ss_size = kStackBytes;
        fibre.context.uc_link = nullptr;
        ::makecontext(&fibre.context, fibre_main, 0);
    }
    uint32_t left = threads;
    while (left > 0) {
        left = 0;
        for (uint32_t thread = 0; thread < threads; ++thread) {
            Fibre& fibre = group->fibres[thread];
            if (fibre.ended)
                continue;
            group->current = thread;
            emulated_thread = {thread, 0, 0};
            go_on(fibre);
            left += fibre.ended ? 0 : 1;
        }
    }
}

float half_of(uint32_t word, uint32_t which) {
    return widen_bf16(static_cast<uint16_t>(word >> (16 * which)));
}

} // namespace

void emulate(Index3 blocks, uint32_t threads, const std::function<void()>& kernel) {
    Group made;
    made.fibres.resize(threads);
    for (Fibre& fibre : made.fibres)
        fibre.stack = std::make_unique<std::byte[]>(kStackBytes);
    made.all.size = threads;
    made.warps.resize((threads + kWarp - 1) / kWarp);
    for (Meeting& warp : made.warps)
        warp.size = kWarp;
    made.given.resize(threads);
    made.operands.resize(threads);
    made.kernel = &kernel;
    group = &made;
    emulated_threads = {threads, 1, 1};
    emulated_blocks = blocks;
    for (uint32_t z = 0; z < blocks.z; ++z)
        for (uint32_t y = 0; y < blocks.y; ++y)
            for (uint32_t x = 0; x < blocks.x; ++x) {
                emulated_block = {x, y, z};
                run_group(threads);
            }
    group = nullptr;
}

void wait_for_group() {
    meet(group->all);
}

uint64_t exchange(uint64_t mine, int mask) {
    const Index3 thread = emulated_thread;
    Meeting& warp = group->warps[thread.x / kWarp];
    group->given[thread.x] = mine;
    meet(warp);
    const uint64_t theirs = group->given[thread.x ^ static_cast<uint32_t>(mask)];
    meet(warp);
    return theirs;
}

void tensor_multiply(float (&sums)[4], const Operands& mine) {
    const Index3 thread = emulated_thread;
    Meeting& warp = group->warps[thread.x / kWarp];
    group->operands[thread.x] = mine;
    meet(warp);
    const Operands* lanes = &group->operands[thread.x / kWarp * kWarp];
    for (uint32_t index = 0; index < 4; ++index) {
        const uint32_t row = thread.x % kWarp / 4 + 8 * (index / 2);
        const uint32_t column = thread.x % 4 * 2 + index % 2;
        for (uint32_t k = 0; k < 16; ++k) {
            const uint32_t pair = k % 8 / 2;
            const uint32_t a = lanes[row % 8 * 4 + pair].a[row / 8 + 2 * (k / 8)];
            const uint32_t b = lanes[column * 4 + pair].b[k / 8];
            sums[index] += half_of(a, k % 2) * half_of(b, k % 2);
        }
    }
    meet(warp);
}

uint16_t round_to_bf16(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value))
        return static_cast<uint16_t>(bits >> 16 | 0x40U);
    return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

} // namespace berth::test
