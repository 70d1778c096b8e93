// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/top_view.h"

namespace berth::cli {

namespace {

std::map<std::string, json::object> instances_of(const json::object& node) {
    std::map<std::string, json::object> by_name;
    const auto* listed = node.if_contains("instances");
    if (listed != nullptr && listed->is_array())
        for (const json::value& one : listed->get_array())
            if (one.is_object())
                by_name[text_at(one.get_object(), "name")] = one.get_object();
    return by_name;
}

} // namespace

std::map<std::string, TopPicture::Rates> rates_between(const json::object& before,
                                                       const json::object& after, double seconds) {
    std::map<std::string, TopPicture::Rates> rates;
    if (seconds <= 0)
        return rates;
    const auto old = instances_of(before);
    for (const auto& [name, now] : instances_of(after)) {
        const auto then = old.find(name);
        // Another process counts from nought again.
        if (then == old.end() || number_at(then->second, "pid") != number_at(now, "pid"))
            continue;
        const auto* was = then->second.if_contains("counters");
        const auto* is = now.if_contains("counters");
        if (was == nullptr || is == nullptr || !was->is_object() || !is->is_object())
            continue;
        auto rate = [&](const char* field) {
            const uint64_t from = number_at(was->get_object(), field);
            const uint64_t to = number_at(is->get_object(), field);
            return to > from ? static_cast<double>(to - from) / seconds : 0.0;
        };
        rates[name] = {rate("tokensDone"), rate("gatePauses")};
    }
    return rates;
}

} // namespace berth::cli
