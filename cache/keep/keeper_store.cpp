// SPDX-License-Identifier: Apache-2.0
#include "cache/keep/keeper_store.h"

#include "base/json.h"

#include <fmt/format.h>

#include <exception>
#include <unistd.h>

namespace berth {

namespace {

// A page of a list ends before a message's limit; one entry always fits (see the limits above).
constexpr size_t kPageBytes = size_t{100} << 10;
static_assert(kKeeperMetaBytesMax + 6 * kKeeperKeyBytesMax + 1024 < kPacketBytesMax);

std::string quoted(const std::string& text) {
    return json::serialize(json::value(text));
}

std::string entry_text(const std::string& key, const std::string& meta, size_t fds) {
    return fmt::format(R"({{"key":{},"meta":{},"fds":{}}})", quoted(key), meta, fds);
}

// `fields` is empty or starts with a comma.
Packet success(uint64_t id, std::string_view fields) {
    Packet packet;
    packet.payload = fmt::format(R"({{"v":{},"id":{},"ok":true{}}})", kKeeperVersion, id, fields);
    return packet;
}

Packet failure(uint64_t id, const Error& error) {
    json::object body;
    body["v"] = kKeeperVersion;
    body["id"] = id;
    body["ok"] = false;
    body["error"] = json::from_error(error);
    Packet packet;
    packet.payload = json::serialize(body);
    return packet;
}

} // namespace

struct KeeperStore::Request {
    uint64_t id = 0;
    std::string op;
    std::string key;
    std::string after;
    std::string meta; // serialised; empty when absent
    std::vector<UniqueFd> fds;

    Status parse(Packet packet) {
        fds = std::move(packet.fds);
        BERTH_ASSIGN(json::value document, json::parse(packet.payload, "the keeper's request"));
        json::Reader reader(document, "the keeper's request");
        id = reader.unsigned_integer("id", 0);
        uint64_t version = reader.unsigned_integer("v");
        op = reader.string("op");
        key = reader.string("key", "");
        after = reader.string("after", "");
        if (const json::value* found = reader.any("meta")) {
            if (!found->is_object())
                reader.refuse("meta",
                              fmt::format("expected an object, found {}", json::kind_name(*found)));
            meta = json::serialize(*found);
        }
        BERTH_TRY(reader.allow_unknown().finish());
        if (version != kKeeperVersion)
            return fail(ErrorCode::kMismatch,
                        fmt::format("this keeper speaks version {}, the request has version {}",
                                    kKeeperVersion, version));
        return {};
    }
};

Packet KeeperStore::refuse(const Error& error) {
    return failure(0, error);
}

Packet KeeperStore::handle(Packet packet) {
    Request request;
    try {
        Status parsed = request.parse(std::move(packet));
        if (!parsed)
            return failure(request.id, parsed.error());
        Result<Packet> reply = answer(request);
        return reply ? std::move(*reply) : failure(request.id, reply.error());
    } catch (const std::exception& exception) {
        // The JSON library's, for want of memory: whatever it is, what is kept stays kept.
        return failure(request.id, Error{ErrorCode::kInternal, exception.what(), {}, 0});
    }
}

Result<Packet> KeeperStore::answer(Request& request) {
    if (request.op == "ping")
        return ping(request);
    if (request.op == "list")
        return list(request);
    if (request.op != "put" && request.op != "get" && request.op != "drop")
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("unknown op '{}': expected put, get, list, drop or ping",
                                request.op.substr(0, 64)));
    if (request.key.empty() || request.key.size() > kKeeperKeyBytesMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("a key of {} bytes: expected 1 to {}", request.key.size(),
                                kKeeperKeyBytesMax));
    if (request.op == "put")
        return put(request);
    return request.op == "get" ? get(request) : drop(request);
}

Result<Packet> KeeperStore::put(Request& request) {
    if (request.meta.empty())
        return fail(ErrorCode::kInvalidArgument, "put needs a 'meta' object");
    if (request.meta.size() > kKeeperMetaBytesMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("a meta of {} bytes: at most {} are kept", request.meta.size(),
                                kKeeperMetaBytesMax));
    if (request.fds.size() > kKeeperFdsMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} descriptors: at most {} are kept under one key",
                                request.fds.size(), kKeeperFdsMax));
    auto found = entries_.find(request.key);
    if (found == entries_.end() && entries_.size() >= kKeeperEntriesMax)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("the keeper holds {} entries, which is its limit", entries_.size()),
                    "KeeperFull");
    size_t replaced = found == entries_.end() ? 0 : found->second.fds.size();
    size_t after = descriptors_ - replaced + request.fds.size();
    if (after > descriptors_max_ && request.fds.size() > replaced)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("the keeper holds {} descriptors and may hold {}: {} more do not "
                                "fit; raise its RLIMIT_NOFILE",
                                descriptors_, descriptors_max_, request.fds.size()),
                    "NoDescriptors");
    Entry entry{std::move(request.meta), std::move(request.fds)};
    if (found == entries_.end())
        entries_.emplace(request.key, std::move(entry));
    else
        found->second = std::move(entry);
    descriptors_ = after;
    return success(request.id, "");
}

Result<Packet> KeeperStore::get(const Request& request) const {
    auto found = entries_.find(request.key);
    if (found == entries_.end())
        return fail(ErrorCode::kNotFound, fmt::format("the keeper has no '{}'", request.key));
    const Entry& entry = found->second;
    std::string text = entry_text(request.key, entry.meta, entry.fds.size());
    // The entry's own fields, within the reply's braces.
    Packet reply = success(request.id, "," + text.substr(1, text.size() - 2));
    for (const UniqueFd& fd : entry.fds) {
        auto copy = fd.duplicate();
        if (!copy)
            return fail(Error{ErrorCode::kResourceExhausted, copy.error().message, "NoDescriptors",
                              copy.error().source});
        reply.fds.push_back(std::move(*copy));
    }
    return reply;
}

Result<Packet> KeeperStore::list(const Request& request) const {
    std::string page;
    auto at = request.after.empty() ? entries_.begin() : entries_.upper_bound(request.after);
    for (; at != entries_.end(); ++at) {
        std::string text = entry_text(at->first, at->second.meta, at->second.fds.size());
        if (!page.empty() && page.size() + text.size() > kPageBytes)
            break;
        page += page.empty() ? "" : ",";
        page += text;
    }
    return success(request.id, fmt::format(R"(,"entries":[{}],"more":{})", page,
                                           at == entries_.end() ? "false" : "true"));
}

Result<Packet> KeeperStore::drop(const Request& request) {
    auto found = entries_.find(request.key);
    if (found == entries_.end())
        return fail(ErrorCode::kNotFound, fmt::format("the keeper has no '{}'", request.key));
    descriptors_ -= found->second.fds.size();
    entries_.erase(found);
    return success(request.id, "");
}

Packet KeeperStore::ping(const Request& request) const {
    return success(request.id,
                   fmt::format(R"(,"pid":{},"entries":{},"descriptors":{},"version":"{}")",
                               ::getpid(), entries_.size(), descriptors_, BERTH_VERSION));
}

std::string KeeperStore::summary() const {
    std::string text;
    for (const auto& [key, entry] : entries_)
        text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", key, entry.fds.size());
    return text;
}

} // namespace berth
