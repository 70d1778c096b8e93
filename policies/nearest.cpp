// SPDX-License-Identifier: Apache-2.0
#include "policies/yaml.h"

#include <algorithm>
#include <numeric>

namespace berth::policies {

namespace {

constexpr size_t kNameBytesMax = 200; // longer ones are nobody's typing mistake

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Edits (insert, delete, replace, swap of neighbours) from one to the other, case aside.
size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        next[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const bool same = lower(a[i - 1]) == lower(b[j - 1]);
            next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (same ? 0 : 1)});
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]))
                next[j] = std::min(next[j], before[j - 2] + 1);
        }
        before.swap(row);
        row.swap(next);
    }
    return row[b.size()];
}

bool begins_with(std::string_view text, std::string_view start) {
    if (text.size() < start.size())
        return false;
    for (size_t i = 0; i < start.size(); ++i)
        if (lower(text[i]) != lower(start[i]))
            return false;
    return true;
}

} // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
    if (name.empty() || name.size() > kNameBytesMax)
        return "";
    std::string best;
    size_t best_distance = std::max<size_t>(1, name.size() / 3) + 1;
    for (const std::string& one : known) {
        const size_t distance = edit_distance(name, one);
        if (distance < best_distance && distance < one.size()) {
            best_distance = distance;
            best = one;
        }
    }
    if (!best.empty() || name.size() < 3)
        return best;
    // A word that was cut short, or written out: grace for gracePeriod.
    for (const std::string& one : known)
        if (begins_with(one, name) || (one.size() >= 3 && begins_with(name, one)))
            return one;
    return "";
}

} // namespace berth::policies
