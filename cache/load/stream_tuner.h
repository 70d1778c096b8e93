// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

namespace berth {

// Finds how many streams a disk is read with best, while it is read: a climb over a short ladder of
// counts, fed with measured rates. Some disks gain from a second stream and some lose, so both
// neighbours and a single stream are tried; a count is left only for one that is clearly better, so
// that noise does not move it, and all is tried again now and then, since disks have other users
// too. A value; no clock, no thread.
class StreamTuner {
  public:
    StreamTuner() = default;

    // How many streams to read with now.
    int streams() const { return kLadder[trying_]; }
    // The count that was best so far: where it comes back to after a try.
    int best() const { return kLadder[best_]; }
    // What was measured with it; 0 while nothing was.
    double best_rate() const { return best_rate_; }
    // The rate that was measured with streams(). `wanted_more`: more streams would have found work;
    // without it a higher count says nothing and is not tried.
    void measured(double bytes_per_second, bool wanted_more);

  private:
    static constexpr std::array<int, 8> kLadder = {1, 2, 3, 4, 6, 8, 12, 16};
    // Measurements that decide on a count together: the best of them counts.
    static constexpr int kTriesEach = 2;
    // How much better a count must be to be kept.
    static constexpr double kGain = 1.03;
    // Measurements at the best count until others are tried again.
    static constexpr int kRestMin = 16;
    static constexpr int kRestMax = 256;

    // Where a round looks, in this order: the last since a disk that loses by every further stream
    // may have a plateau between.
    enum class Way { kUp, kDown, kOneStream };

    void decide(bool wanted_more);
    bool can_step(bool wanted_more) const;
    bool turn();
    void rest();

    size_t best_ = 0;
    size_t trying_ = 0;
    int tries_ = 0;
    double rate_ = 0;      // the best at trying_
    double best_rate_ = 0; // the best at best_, in this round
    Way way_ = Way::kUp;   // where this round looks
    bool moved_ = false;   // this round has found a better count
    bool resting_ = false;
    int rested_ = 0;
    int rest_ = kRestMin;
};

} // namespace berth
