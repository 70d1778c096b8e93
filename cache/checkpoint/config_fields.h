// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// For .cpp files only, as base/json.h.
namespace berth {

// Sizes beyond this are a damaged file. Products of the few sizes that make one tensor stay below
// 2^64 bits with it.
inline constexpr uint64_t kSizeMax = uint64_t{1} << 24;

// Reads fields of config.json leniently (unknown ones belong to other programs) and keeps the first
// fault. A field that is null counts as absent, as transformers writes it. Holds references: the
// object and the file's name outlive it.
class Fields {
  public:
    Fields(const json::object& object, std::string_view shown) : object_(object), shown_(shown) {}

    const json::value* find(std::string_view name) const;
    // A whole number above zero.
    uint64_t size(std::string_view name, uint64_t fallback, bool required, uint64_t max = kSizeMax);
    // A whole number, zero included.
    uint64_t count(std::string_view name, uint64_t fallback, uint64_t max);
    // A whole number above zero, or null for "none", which is 0. Writers disagree on what an absent
    // field means, so it must be there.
    uint64_t size_or_null(std::string_view name, uint64_t max = kSizeMax);
    double number(std::string_view name, double fallback);
    bool flag(std::string_view name, bool fallback);
    std::string text(std::string_view name);
    // A whole number or a list of them.
    std::vector<int64_t> ids(std::string_view name);
    void bad(std::string_view field, std::string_view found, std::string_view expected);
    Status finish() const;

  private:
    uint64_t whole(std::string_view name, const json::value& found, uint64_t min, uint64_t max,
                   uint64_t fallback);

    const json::object& object_;
    std::string_view shown_;
    std::optional<Error> fault_;
};

} // namespace berth
