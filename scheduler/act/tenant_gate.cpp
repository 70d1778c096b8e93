// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/tenant_gate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace berth {

namespace {

std::string normal(const std::string& path) {
    std::string out = std::filesystem::path(path).lexically_normal().string();
    while (out.size() > 1 && out.back() == '/')
        out.pop_back();
    return out;
}

tl::unexpected<Error> refuse(std::string message) {
    return fail(ErrorCode::kPermissionDenied, std::move(message), "TenantRefused");
}

} // namespace

std::vector<const policies::TenantSpec*> TenantGate::tenants_of(const node::NodeState& state,
                                                                const Who& who) {
    std::string named;
    if (auto found = state.instances.find(who.instance); found != state.instances.end())
        named = found->second.spec.tenant;
    std::vector<const policies::TenantSpec*> found;
    for (const policies::TenantSpec& tenant : state.policy.tenants) {
        bool lists_user = named.empty() && std::ranges::any_of(tenant.users, [&](const auto& user) {
                              return names_.uid_of(user) == who.uid;
                          });
        if (lists_user || (!named.empty() && tenant.name == named))
            found.push_back(&tenant);
    }
    return found;
}

Status TenantGate::allows(const node::NodeState& state, const Who& who, const std::string& path,
                          const std::string& model) {
    std::string subject = who.instance.empty() ? fmt::format("user {}", who.uid)
                                               : fmt::format("instance '{}'", who.instance.value);
    std::vector<const policies::TenantSpec*> tenants = tenants_of(state, who);
    if (tenants.empty()) {
        auto instance = state.instances.find(who.instance);
        if (instance == state.instances.end() || instance->second.spec.tenant.empty())
            return {};
        return refuse(fmt::format("{} is of tenant '{}', which the policy does not have: apply it "
                                  "(tenants of the ColocationPolicy), or leave spec.tenant out",
                                  subject, instance->second.spec.tenant));
    }
    std::set<std::string> models; // by the names that the policy has for it
    if (path.empty() && !model.empty())
        models.insert(model);
    for (const policies::ModelSpec& one : state.documents.models)
        if (!path.empty() && normal(one.path) == normal(path))
            models.insert(one.name);
    std::vector<std::string> names;
    std::set<std::string> allowed;
    for (const policies::TenantSpec* tenant : tenants) {
        names.push_back(tenant->name);
        allowed.insert(tenant->may_attach.begin(), tenant->may_attach.end());
    }
    if (std::ranges::any_of(models, [&](const auto& one) { return allowed.contains(one); }))
        return {};
    std::string wanted = models.empty() ? fmt::format("{}, which is no Model of the policy",
                                                      path.empty() ? "a published set" : path)
                                        : fmt::format("{}", fmt::join(models, ", "));
    return refuse(fmt::format(
        "{} is of tenant {} and may attach to {}, not to {}: an admin changes that by mayAttach "
        "of the tenant in the ColocationPolicy",
        subject, fmt::join(names, ", "),
        allowed.empty() ? std::string("no model") : fmt::format("{}", fmt::join(allowed, ", ")),
        wanted));
}

} // namespace berth
