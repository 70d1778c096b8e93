// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/planner.h"
#include "scheduler/node/ranks.h"

#include <algorithm>

// The devices that an instance could be placed on, and what it would have to have there.
namespace berth::node {

namespace {

const char* distance_words(int distance) {
    static constexpr const char* kWords[] = {
        "its weights are resident", "its weights are being loaded there",
        "its weights come from host memory", "its weights come from an image", ""};
    return kWords[distance];
}

} // namespace

// Its candidates, best first; the others' reasons are noted in the decision.
std::vector<Step::Fit> Step::find_fits(const Instance& i, Board& board, Decision& decision) {
    const bool returns = i.state == InstanceState::kEvicted;
    std::vector<Fit> fits;
    for (Board::Row& row : board.rows()) {
        if (!Board::is_candidate(i, row))
            continue;
        std::string no;
        if (row.device->cordoned)
            no = "cordoned: " + row.device->cordon_reason;
        else if (returns)
            no = return_refusal(i, row);
        if (!no.empty()) {
            decision.candidates.push_back(
                {"device/" + row.device->id.value, no, false, row.free_bytes});
            continue;
        }
        Fit fit;
        fit.row = &row;
        const uint64_t claimed = claimed_bytes(i, row);
        fit.available_bytes = row.free_bytes > claimed ? row.free_bytes - claimed : 0;
        fits.push_back(fit);
    }
    return in_order(i, board, std::move(fits));
}

// The best first, each with what it has to have there. Of several ranks each device is given those
// of the ones left that are nearest to it: the same part on two of them serves one alone.
std::vector<Step::Fit> Step::in_order(const Instance& i, Board& board,
                                      std::vector<Fit> fits) const {
    const bool pack = s_.policy.placement.strategy == policies::PlacementStrategy::kPack;
    const auto is_better = [pack](const Fit& a, const Fit& b) {
        const bool a_fits = a.need_bytes <= a.available_bytes;
        const bool b_fits = b.need_bytes <= b.available_bytes;
        if (a_fits != b_fits)
            return a_fits;
        if (a.distance != b.distance)
            return a.distance < b.distance;
        if (a.available_bytes != b.available_bytes)
            return (a.available_bytes > b.available_bytes) != (pack && a_fits);
        return a.row->device->id < b.row->device->id;
    };
    std::vector<uint32_t> open = first_ranks(i);
    std::vector<Fit> ordered;
    for (;;) {
        for (Fit& fit : fits)
            weigh(i, board, open, fit);
        std::sort(fits.begin(), fits.end(), is_better);
        // Devices of two kinds cost a process differently: of several they are of one kind.
        if (ordered.empty() && i.spec.device_count > 1 && !fits.empty())
            std::erase_if(fits, [kind = fits.front().row->device->kind](const Fit& fit) {
                return fit.row->device->kind != kind;
            });
        if (open.size() <= 1 || fits.empty())
            break;
        ordered.push_back(fits.front());
        fits.erase(fits.begin());
        std::erase(open, ordered.back().first_rank);
    }
    ordered.insert(ordered.end(), fits.begin(), fits.end());
    const size_t count = std::min<size_t>(ordered.size(), i.spec.ranks / i.spec.ranks_each());
    for (size_t a = 0; a < count; ++a)
        for (size_t b = a + 1; b < count; ++b)
            swap_if_better(i, board, ordered[a], ordered[b]);
    return ordered;
}

// What the nearest of these parts makes of it.
void Step::weigh(const Instance& i, Board& board, const std::vector<uint32_t>& open, Fit& fit) {
    Board::Weights here;
    here.resident = true; // there are none
    if (board.model_of(i) != nullptr)
        here = board.weights(i, *fit.row, open);
    fit.need_bytes = board.need_bytes(i, *fit.row, here);
    fit.resident = here.resident;
    fit.distance = here.distance;
    fit.first_rank = here.first_rank;
}

// Two change their parts where only so both fit; and where it is all the same ranks are in the
// devices' order.
void Step::swap_if_better(const Instance& i, Board& board, Fit& a, Fit& b) {
    Fit other_a = a, other_b = b;
    weigh(i, board, {b.first_rank}, other_a);
    weigh(i, board, {a.first_rank}, other_b);
    const auto fits = [](const Fit& one) { return one.need_bytes <= one.available_bytes; };
    if (!fits(other_a) || !fits(other_b))
        return;
    const bool is_in_order =
        (a.row->device->id < b.row->device->id) == (a.first_rank < b.first_rank);
    const bool is_as_near = other_a.distance == a.distance && other_b.distance == b.distance;
    if (fits(a) && fits(b) && (is_in_order || !is_as_near))
        return;
    a = other_a;
    b = other_b;
}

// For the record: what each of its devices has for it.
void Step::note_fits(const Instance& i, const std::vector<Fit>& fits, Decision& decision) {
    for (const Fit& fit : fits) {
        const bool room = fit.need_bytes <= fit.available_bytes;
        std::string why = (room ? format_bytes(fit.available_bytes) + " are free for it"
                                : "needs " + format_bytes(fit.need_bytes) + ", " +
                                      format_bytes(fit.available_bytes) + " are free for it");
        if (!i.spec.model.empty() && *distance_words(fit.distance) != '\0')
            why += std::string("; ") + distance_words(fit.distance);
        decision.candidates.push_back(
            {"device/" + fit.row->device->id.value, why, false, fit.available_bytes});
    }
}

} // namespace berth::node
