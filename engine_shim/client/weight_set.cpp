// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/weight_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace berth {

namespace {

constexpr size_t kCompareMax = 256;

// Levenshtein's distance, on the first 256 bytes of each.
size_t distance(std::string_view a, std::string_view b) {
    a = a.substr(0, kCompareMax);
    b = b.substr(0, kCompareMax);
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < b.size(); ++j) {
            size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({change, row[j] + 1, row[j + 1] + 1});
        }
    }
    return row.back();
}

} // namespace

Result<TensorView> WeightSet::find(std::string_view name) const {
    const Manifest& table = manifest();
    if (int64_t index = table.find(name); index >= 0)
        return table.at(static_cast<size_t>(index));
    std::string_view nearest;
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < table.size(); ++i) {
        std::string_view candidate = table.at(i).name;
        if (size_t far = distance(name, candidate); far < least) {
            least = far;
            nearest = candidate;
        }
    }
    return fail(ErrorCode::kNotFound,
                fmt::format("weight set {} has no tensor '{}'{}", id_, name,
                            nearest.empty() ? " (it has none at all)"
                                            : fmt::format("; the nearest is '{}'", nearest)));
}

} // namespace berth
