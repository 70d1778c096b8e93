// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"
#include "cache/weights/fingerprint.h"
#include "scheduler/act/attach_desk.h"

namespace berth {

// The environment that a set was made for, out of its fingerprint's document.
protocol::Environment environment_of(const std::string& document) {
    protocol::Environment environment;
    auto parsed = json::parse(document, "the fingerprint");
    if (!parsed || !parsed->is_object())
        return environment;
    auto text = [](const json::object& from, const char* field) {
        const json::value* found = from.if_contains(field);
        return found != nullptr && found->is_string() ? std::string(found->get_string())
                                                      : std::string();
    };
    environment.layout = text(parsed->get_object(), "layout");
    if (const json::value* part = parsed->get_object().if_contains("environment");
        part != nullptr && part->is_object()) {
        environment.device_kind = text(part->get_object(), "deviceKind");
        environment.compute_capability = text(part->get_object(), "computeCapability");
        environment.cuda_version = text(part->get_object(), "cudaVersion");
        environment.torch_version = text(part->get_object(), "torchVersion");
    }
    return environment;
}

std::string environment_differences(const protocol::Environment& have,
                                    const protocol::Environment& wanted) {
    std::vector<FieldDifference> differences;
    auto compare_field = [&](const char* name, const std::string& cached, const std::string& asked,
                             bool any_accepts) {
        if (asked.empty() || asked == cached)
            return;
        if (any_accepts && (asked == "any" || cached == "any" || cached.empty()))
            return;
        differences.push_back({name, cached, asked});
    };
    compare_field("environment.deviceKind", have.device_kind, wanted.device_kind, false);
    compare_field("environment.computeCapability", have.compute_capability,
                  wanted.compute_capability, false);
    compare_field("environment.cudaVersion", have.cuda_version, wanted.cuda_version, false);
    compare_field("layout", have.layout, wanted.layout, false);
    compare_field("environment.torchVersion", have.torch_version, wanted.torch_version, true);
    return differences.empty() ? std::string() : difference_table(differences);
}

} // namespace berth
