// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/service.h"

#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/node_calls.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

namespace berth::cli::bench {

namespace {

constexpr std::chrono::milliseconds kLookEvery{20};
constexpr std::chrono::seconds kWholeMax{120};

bool is_up(const json::object& member) {
    const auto* connected = member.if_contains("connected");
    return text_at(member, "state") == "Running" && connected != nullptr && connected->is_bool() &&
           connected->get_bool();
}

bool answers(const json::object& member) {
    return is_up(member) && text_at(member, "role") == "Active";
}

bool stands_by(const json::object& member) {
    return is_up(member) && text_at(member, "substate") == "Standby";
}

std::string states_of(const json::array& members) {
    std::string words;
    for (const json::value& value : members) {
        const json::object& member = value.get_object();
        const std::string substate = text_at(member, "substate");
        words +=
            fmt::format("{}{} is {}{}{}{}", words.empty() ? "" : ", ", text_at(member, "name"),
                        text_at(member, "state"), substate.empty() ? "" : " " + substate,
                        text_at(member, "message").empty() ? "" : ": ", text_at(member, "message"));
    }
    return words;
}

} // namespace

Result<Service> Service::find(const AdminClient& client, const std::string& name) {
    BERTH_ASSIGN(const json::object shown, instance_of(client, name));
    if (text_at(shown, "listen").empty())
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("instance '{}' has no `engine.listen`: its socket ends with its "
                                "process, and so do the requests in flight",
                                name),
                    "NotAService");
    const std::string of = text_at(shown, "standbyOf");
    Service service(client, of.empty() ? name : of);
    BERTH_ASSIGN(const json::array members, service.members());
    service.standbys_ = members.size() - 1;
    return service;
}

Result<json::array> Service::members() const {
    BERTH_ASSIGN(const json::value reply, client_->get("/v1/instances"));
    BERTH_ASSIGN(const json::array all, items_of(reply));
    json::array members;
    for (const json::value& one : all)
        if (one.is_object() && (text_at(one.get_object(), "name") == name_ ||
                                text_at(one.get_object(), "standbyOf") == name_))
            members.push_back(one);
    if (members.empty())
        return fail(ErrorCode::kNotFound, fmt::format("there is no instance '{}' any more", name_));
    return members;
}

bool Service::is_steady(const json::object& member) {
    const std::string what =
        fmt::format("{} {} {}", number_at(member, "pid"), text_at(member, "substate"),
                    number_at(member, "grantBytes"));
    const auto now = Clock::now();
    return now - seen_.try_emplace(what, now).first->second >= kSteady;
}

Result<json::object> Service::whole(int not_pid) {
    const auto end = Clock::now() + kWholeMax;
    for (;; pause_between_looks(kLookEvery)) {
        BERTH_ASSIGN(const json::array members, this->members());
        const json::object* active = nullptr;
        bool has_standby = standbys_ == 0;
        for (const json::value& value : members) {
            const json::object& member = value.get_object();
            if (answers(member) && is_steady(member) &&
                number_at(member, "pid") != static_cast<uint64_t>(not_pid))
                active = &member;
            if (stands_by(member) && is_steady(member))
                has_standby = true;
        }
        if (active != nullptr && has_standby)
            return *active;
        if (Clock::now() > end)
            return fail(ErrorCode::kDeadlineExceeded,
                        fmt::format("the service '{}' is not whole after {} s: {}", name_,
                                    kWholeMax.count(), states_of(members)),
                        "NotWhole");
    }
}

} // namespace berth::cli::bench
