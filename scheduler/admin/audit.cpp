// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/audit.h"

#include "base/hash.h"
#include "base/json.h"

#include <fmt/format.h>

#include <utility>

namespace berth {

namespace {

constexpr size_t kBodyShownMax = 300;
constexpr size_t kTargetShownMax = 200;

// Nothing in it begins a line of its own or ends the quotes: what is logged was written by others.
std::string shown(std::string_view text, size_t most) {
    std::string out;
    for (char c : text.substr(0, most)) {
        auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\')
            out += fmt::format("\\{}", c);
        else if (byte < 0x20 || byte >= 0x7f)
            out += fmt::format("\\x{:02x}", byte);
        else
            out += c;
    }
    return text.size() > most ? out + "..." : out;
}

// "/v1/instances/nightly:preempt" -> "instance/nightly".
std::string object_of(const std::string& path, const std::string& node) {
    static const std::map<std::string, std::string> kKinds{
        {"instances", "instance"}, {"weights", "weights"}, {"devices", "device"}};
    constexpr std::string_view kRoot = "/v1/";
    if (path.starts_with(kRoot)) {
        size_t slash = path.find('/', kRoot.size());
        std::string kind = path.substr(kRoot.size(), slash - kRoot.size());
        if (auto known = kKinds.find(kind); known != kKinds.end() && slash != std::string::npos) {
            std::string name = path.substr(slash + 1);
            if (auto decoded = http::percent_decode(name.substr(0, name.rfind(':'))))
                return known->second + "/" + shown(*decoded, 64);
        }
    }
    return "node/" + node;
}

std::string body_words(const http::Request& request) {
    if (request.body.empty())
        return {};
    const std::string* type = request.headers.find("Content-Type");
    bool is_short = request.body.size() <= kBodyShownMax;
    // Documents hold environments, and these may hold what only their reader should see.
    bool is_document = request.method == "PUT" || request.path.ends_with(":rollout") ||
                       (type != nullptr && type->find("yaml") != std::string::npos);
    if (is_short && !is_document)
        return fmt::format(" body=\"{}\"", shown(request.body, kBodyShownMax));
    return fmt::format(" body-bytes={} body-sha256={:.16}", request.body.size(),
                       sha256_hex(request.body));
}

// The operation that a reply names, or the reason of a refusal.
std::string reply_words(const http::Response& response) {
    constexpr size_t kLookedAtMax = size_t{64} << 10;
    if (response.content_type != "application/json" || response.body.size() > kLookedAtMax)
        return {};
    auto reply = json::parse(response.body, "the reply");
    if (!reply || !reply->is_object())
        return {};
    const json::object& fields = reply->get_object();
    if (response.status >= 400) {
        Error error = json::to_error(*reply);
        return fmt::format(" reason={} message=\"{}\"",
                           error.reason.empty() ? std::string(to_string(error.code)) : error.reason,
                           shown(error.message, kBodyShownMax));
    }
    const json::value* id = fields.if_contains("id");
    if (id == nullptr || !id->is_string())
        return {};
    return fmt::format(" operation={}", std::string_view(id->get_string()));
}

} // namespace

Audit::Entry Audit::begin(const Caller& caller, const http::Request& request) const {
    Entry entry;
    entry.object = object_of(request.path, context_.node_name);
    entry.words = fmt::format("who=\"{}\"{}{} from={} role={} request=\"{} {}\"{}", caller.name,
                              caller.details.empty() ? "" : " ", caller.details, caller.from,
                              caller.role ? policies::to_string(*caller.role) : "none",
                              shown(request.method, 16), shown(request.target, kTargetShownMax),
                              body_words(request));
    return entry;
}

void Audit::write(bool warning, const Entry& entry, const std::string& outcome) {
    std::string words = fmt::format("{} {}", entry.words, outcome);
    if (warning)
        log::warn("audit object={} {}", entry.object, words);
    else
        log::info("audit object={} {}", entry.object, words);
    context_.loop->record(context_.events.add(warning, entry.object, "Audit", std::move(words)));
}

void Audit::done(const Entry& entry, const http::Response& response) {
    write(response.status >= 400, entry,
          fmt::format("outcome={}{}", response.status, reply_words(response)));
}

void Audit::broken_off(const Entry& entry) {
    write(true, entry, "outcome=broken-off");
}

void Audit::refused(const Caller& caller, const http::Request& request, const Error& why) {
    auto now = std::chrono::steady_clock::now();
    // Of TCP the address alone: each connection has a port of its own.
    std::string from = caller.from.substr(0, caller.from.rfind(':'));
    std::string key = caller.name + " " + from;
    if (!refusals_.contains(key) && refusals_.size() >= kCallersMax) {
        std::erase_if(refusals_,
                      [&](const auto& one) { return now - one.second.told >= kSummedFor; });
        if (refusals_.size() >= kCallersMax)
            key = "others";
    }
    Refusals& of_caller = refusals_[key];
    if (of_caller.told.time_since_epoch().count() != 0 && now - of_caller.told < kSummedFor) {
        ++of_caller.since;
        return;
    }
    of_caller.told = now;
    uint64_t since = std::exchange(of_caller.since, 0);
    write(true, begin(caller, request),
          fmt::format("outcome=refused reason={}{}", why.reason,
                      since == 0
                          ? std::string()
                          : fmt::format(" and {} more since the last line of this caller", since)));
}

} // namespace berth
