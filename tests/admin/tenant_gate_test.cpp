// SPDX-License-Identifier: Apache-2.0
// Which tenant a session is of, and what that lets it attach to.
#include "scheduler/act/tenant_gate.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

node::NodeState state_of() {
    node::NodeState state;
    for (const char* name : {"small", "large", "secret"}) {
        policies::ModelSpec model;
        model.name = name;
        model.path = std::string("/models/") + name;
        state.documents.models.push_back(model);
    }
    policies::TenantSpec search;
    search.name = "search";
    search.users = {"1001", "1003"};
    search.may_attach = {"small"};
    policies::TenantSpec ads;
    ads.name = "ads";
    ads.users = {"1002", "1003"};
    ads.may_attach = {"large"};
    policies::TenantSpec none;
    none.name = "none";
    none.users = {"1004"};
    state.policy.tenants = {search, ads, none};
    node::Instance instance;
    instance.name = node::InstanceName("nightly");
    instance.spec.tenant = "ads";
    state.instances[instance.name] = instance;
    instance.name = node::InstanceName("orphan");
    instance.spec.tenant = "gone";
    state.instances[instance.name] = instance;
    instance.name = node::InstanceName("free");
    instance.spec.tenant = "";
    state.instances[instance.name] = instance;
    return state;
}

bool may(uint32_t uid, const char* path, const char* instance = "", const char* model = "") {
    TenantGate gate;
    return gate.allows(state_of(), {node::InstanceName(instance), uid}, path, model).has_value();
}

TEST(TenantGate, AUserHasWhatAnyOfHisTenantsHas) {
    EXPECT_TRUE(may(1001, "/models/small"));
    EXPECT_FALSE(may(1001, "/models/large"));
    EXPECT_FALSE(may(1001, "/models/elsewhere")) << "no Model of the policy";
    EXPECT_TRUE(may(1001, "/models/./small/"));
    EXPECT_TRUE(may(1003, "/models/small"));
    EXPECT_TRUE(may(1003, "/models/large"));
    EXPECT_FALSE(may(1003, "/models/secret"));
    EXPECT_FALSE(may(1004, "/models/small")) << "an empty list lets nothing through";
}

TEST(TenantGate, WhoIsOfNoTenantIsNotRestricted) {
    EXPECT_TRUE(may(9, "/models/secret"));
    EXPECT_TRUE(may(9, "/models/elsewhere"));
    EXPECT_TRUE(may(9, "/models/secret", "free"));
}

TEST(TenantGate, AnInstanceIsOfTheTenantThatItsDocumentNames) {
    EXPECT_TRUE(may(1001, "/models/large", "nightly")) << "whatever user runs it";
    EXPECT_FALSE(may(0, "/models/small", "nightly"));
    EXPECT_FALSE(may(0, "/models/small", "orphan")) << "a tenant that the policy has no more";
    EXPECT_TRUE(may(1001, "/models/small", "free")) << "of its user's";
    EXPECT_FALSE(may(1001, "/models/large", "free"));
}

TEST(TenantGate, ChangedListsOfATenantHoldFromTheNextAttachOn) {
    node::NodeState state = state_of();
    TenantGate gate;
    const auto may_now = [&](uint32_t uid, const char* path) {
        return gate.allows(state, {node::InstanceName(), uid}, path, "").has_value();
    };
    EXPECT_FALSE(may_now(1001, "/models/large"));
    state.policy.tenants[0].may_attach = {"large"};
    EXPECT_TRUE(may_now(1001, "/models/large"));
    EXPECT_FALSE(may_now(1001, "/models/small"));
    EXPECT_FALSE(may_now(1002, "/models/small"));
    state.policy.tenants[1].users = {};
    EXPECT_TRUE(may_now(1002, "/models/small")) << "of no tenant any more: not restricted";
    state.policy.tenants[2].users = {"1002"};
    EXPECT_FALSE(may_now(1002, "/models/small"));
}

TEST(TenantGate, APublishedSetGoesByTheModelThatItsPublisherNamed) {
    EXPECT_TRUE(may(1001, "", "", "small"));
    EXPECT_FALSE(may(1001, "", "", "large"));
    EXPECT_FALSE(may(1001, ""));
}

TEST(TenantGate, TheRefusalNamesUserTenantListAndModel) {
    TenantGate gate;
    auto refused = gate.allows(state_of(), {node::InstanceName(), 1001}, "/models/secret", "");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, "TenantRefused");
    for (const char* word : {"user 1001", "tenant search", "small", "secret", "mayAttach"})
        EXPECT_NE(refused.error().message.find(word), std::string::npos) << word;
}

} // namespace
} // namespace berth
