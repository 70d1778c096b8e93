// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/stimulus.h"

#include "base/number.h"
#include "base/units.h"

#include <array>
#include <sstream>
#include <string_view>

namespace berth::simulate {

namespace {

using Kind = Stimulus::Kind;

struct Word {
    std::string_view name;
    uint64_t weight; // how often it is drawn
    char object;     // of what: (i)nstance, (d)evice, (m)odel, (-) nothing
};
constexpr std::array<Word, static_cast<size_t>(Kind::kKindsMax)> kWords{{
    {"preempt", 16, 'i'},
    {"resume", 14, 'i'},
    {"hold", 3, 'i'},
    {"release", 4, 'i'},
    {"drain", 2, 'i'},
    {"cordon", 2, 'd'},
    {"uncordon", 4, 'd'},
    {"drain-device", 1, 'd'},
    {"load", 5, 'm'},
    {"evict", 6, 'm'},
    {"pin", 1, 'm'},
    {"unpin", 2, 'm'},
    {"engine-dies", 7, 'i'},
    {"program-exits", 2, 'i'},
    {"disconnects", 6, 'i'},
    {"falls-silent", 2, 'i'},
    {"sticks", 2, 'i'},
    {"promote", 3, 'i'},
    {"rollout", 6, 'i'},
    {"rollout-asked", 5, 'i'},
    {"arrivals", 12, 'i'},
    {"documents", 8, 'i'},
    {"checkpoint-changes", 2, 'm'},
    {"guest-takes", 4, 'm'},
    {"guest-leaves", 5, '-'},
    {"guest-publishes", 3, 'd'},
    {"berthd-killed", 5, '-'},
    {"keeper-killed", 2, '-'},
    {"berthd-stops", 1, '-'},
    {"disk-full", 2, '-'},
    {"clock-jumps", 2, '-'},
    {"late-words", 6, 'i'},
}};

uint64_t all_weights() {
    uint64_t sum = 0;
    for (const Word& word : kWords)
        sum += word.weight;
    return sum;
}

Nanoseconds draw_gap(Dice& dice) {
    const uint64_t kind = dice.below(100);
    if (kind < 60)
        return dice.ms(0, 200);
    if (kind < 88)
        return dice.ms(200, 3000);
    return kind < 98 ? dice.ms(3000, 30'000) : dice.ms(30'000, 300'000);
}

void draw_numbers(Stimulus& one, Dice& dice) {
    switch (one.kind) {
    case Kind::kPreempt:
        one.a = dice.below(4);
        break;
    case Kind::kArrivals:
        one.a = dice.between(1, 12);
        one.b = dice.below(2);
        break;
    case Kind::kBerthdKilled:
    case Kind::kKeeperKilled:
        one.a = dice.one_in(3) ? 0 : dice.below(40);
        one.b = dice.one_in(3) ? dice.between(1000, 20'000) : dice.between(20, 400);
        break;
    case Kind::kDiskFull:
        one.a = dice.between(10, 20'000);
        break;
    case Kind::kClockJumps:
        one.a = dice.one_in(2) ? dice.below(100) : dice.below(uint64_t{86'400} * 3);
        one.b = dice.below(2);
        break;
    case Kind::kGuestTakes:
    case Kind::kGuestLeaves:
        one.a = 1 + dice.below(5);
        one.b = dice.draw() % 16;
        break;
    default:
        one.a = dice.below(1000);
        one.b = dice.below(8);
    }
}

} // namespace

Stimulus draw_stimulus(const Dice& all, uint64_t number, const Shape& shape, Nanoseconds& gap) {
    Dice dice = all.of("stimulus", number);
    Stimulus one;
    one.number = number;
    gap = draw_gap(dice);
    uint64_t at = dice.below(all_weights());
    size_t kind = 0;
    while (at >= kWords[kind].weight)
        at -= kWords[kind++].weight;
    if (Dice rolls = dice.of("rolls"); shape.rolls && rolls.one_in(4)) {
        kind = static_cast<size_t>(rolls.one_in(5) ? Kind::kRolloutAsked : Kind::kRollout);
        gap += rolls.ms(0, 30'000); // the one before may have come to its end
    }
    one.kind = static_cast<Kind>(kind);
    if (kWords[kind].object == 'i')
        one.object = "i" + std::to_string(dice.below(shape.drawn));
    else if (kWords[kind].object == 'd')
        one.object = shape.devices[dice.below(shape.devices.size())].id.value;
    else if (kWords[kind].object == 'm')
        one.object = "m" + std::to_string(dice.below(shape.documents.models.size()));
    draw_numbers(one, dice);
    return one;
}

std::string to_text(const Stimulus& one) {
    const int64_t micro = std::chrono::duration_cast<std::chrono::microseconds>(one.at).count();
    return std::to_string(micro) + "us " + std::string(kWords[static_cast<size_t>(one.kind)].name) +
           " " + (one.object.empty() ? "-" : one.object) + " " + std::to_string(one.a) + " " +
           std::to_string(one.b) + " #" + std::to_string(one.number);
}

Result<Stimulus> stimulus_from(const std::string& line) {
    std::istringstream words(line);
    std::string at, kind, object, a, b, number;
    words >> at >> kind >> object >> a >> b >> number;
    Stimulus one;
    BERTH_ASSIGN(one.at, parse_duration(at));
    size_t n = 0;
    while (n < kWords.size() && kWords[n].name != kind)
        ++n;
    if (n == kWords.size())
        return fail(ErrorCode::kInvalidArgument, "'" + kind + "' is nothing that can happen");
    one.kind = static_cast<Kind>(n);
    one.object = object == "-" ? "" : object;
    const auto first = number_in<uint64_t>(a), second = number_in<uint64_t>(b);
    const auto place = number.empty() ? std::nullopt : number_in<uint64_t>(number.substr(1));
    if (!first || !second || !place)
        return fail(ErrorCode::kInvalidArgument,
                    "'" + line + "': expected TIME KIND OBJECT NUMBER NUMBER #NUMBER");
    one.a = *first;
    one.b = *second;
    one.number = *place;
    return one;
}

} // namespace berth::simulate
