// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace berth::simulate {

// Chance from a seed. What is drawn depends on the seed and on what it is about, not on what was
// drawn elsewhere before: a run from which one actor was left out draws the same for all others,
// which is what makes a failing run small. A plain value.
class Dice {
  public:
    explicit Dice(uint64_t seed) : seed_(seed), next_(mix(seed)) {}

    // Dice of its own for one topic: of("engine", 3).of("command", 7).
    Dice of(std::string_view topic, uint64_t number = 0) const {
        uint64_t hash = seed_ ^ 0x9e3779b97f4a7c15ULL;
        for (char letter : topic)
            hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
        return Dice(mix(hash ^ mix(number + 1)));
    }

    uint64_t draw() {
        next_ += 0x9e3779b97f4a7c15ULL;
        return mix(next_);
    }
    uint64_t below(uint64_t bound) { return bound == 0 ? 0 : draw() % bound; }
    uint64_t between(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
    bool one_in(uint64_t n) { return below(n) == 0; }
    bool permille(uint64_t chance) { return below(1000) < chance; }
    std::chrono::milliseconds ms(uint64_t least, uint64_t most) {
        return std::chrono::milliseconds(between(least, most));
    }

  private:
    static uint64_t mix(uint64_t value) {
        value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
        value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
        return value ^ (value >> 31);
    }
    uint64_t seed_;
    uint64_t next_;
};

} // namespace berth::simulate
