// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/preconditions.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

constexpr size_t kTagsMax = 16; // of one If-Match
constexpr int kPreconditionFailed = 412;
constexpr std::string_view kMismatch = "ETagMismatch";
constexpr std::string_view kExists = "AlreadyExists";

} // namespace

bool is_matched(std::string_view wanted, const std::string& tag) {
    for (size_t count = 0; !wanted.empty() && count < kTagsMax; ++count) {
        const size_t comma = std::min(wanted.find(','), wanted.size());
        std::string_view one = wanted.substr(0, comma);
        wanted.remove_prefix(std::min(comma + 1, wanted.size()));
        while (!one.empty() && one.front() == ' ')
            one.remove_prefix(1);
        while (!one.empty() && one.back() == ' ')
            one.remove_suffix(1);
        if (one == "*" || one == tag)
            return true;
    }
    return false;
}

Status preconditions(const http::Request& request, const std::string& what,
                     const std::string& tag) {
    const std::string* match = request.headers.find("If-Match");
    if (match != nullptr && tag.empty())
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("{} is not there, and If-Match is {}: leave it out to create it",
                                what, *match),
                    std::string(kMismatch));
    if (match != nullptr && !is_matched(*match, tag))
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("{} is no longer {}: somebody has changed it, and now it is {}; "
                                "look at the difference, then apply again",
                                what, *match, tag),
                    std::string(kMismatch));
    const std::string* none = request.headers.find("If-None-Match");
    if (none != nullptr && !tag.empty() && is_matched(*none, tag))
        return fail(
            ErrorCode::kFailedPrecondition,
            fmt::format("{} is there already, as {}, and If-None-Match is {}", what, tag, *none),
            std::string(kExists));
    return {};
}

http::Response change_refused(const Error& error) {
    if (error.reason == kMismatch || error.reason == kExists)
        return http::error_response(error, kPreconditionFailed);
    return http::error_response(error);
}

std::string query_of(const http::Request& request, const std::string& name,
                     const std::string& fallback) {
    auto found = request.query.find(name);
    return found == request.query.end() ? fallback : found->second;
}

bool is_dry(const http::Request& request) {
    return query_of(request, "dryRun", "false") != "false";
}

Result<std::string> request_id_of(const http::Request& request) {
    std::string id = query_of(request, "requestId", "");
    if (id.size() > DoneRequests::kIdBytesMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("query parameter 'requestId': {} bytes; at most {} are kept",
                                id.size(), DoneRequests::kIdBytesMax));
    return id;
}

std::string DoneRequests::key_of(const http::Request& request, const std::string& id) {
    return fmt::format("{} {} {}", request.method, request.path, id);
}

bool DoneRequests::knows(const http::Request& request, const std::string& id) const {
    return !id.empty() && known_.contains(key_of(request, id));
}

void DoneRequests::keep(const http::Request& request, const std::string& id) {
    if (id.empty())
        return;
    std::string key = key_of(request, id);
    if (!known_.insert(key).second)
        return;
    order_.push_back(std::move(key));
    if (order_.size() <= kMax)
        return;
    known_.erase(order_.front());
    order_.pop_front();
}

} // namespace berth
