// SPDX-License-Identifier: Apache-2.0
#include "cache/keep/keeper_client.h"

#include "base/json.h"
#include "base/packet_socket.h"
#include "cache/keep/keeper_store.h"

#include <fmt/format.h>

namespace berth {

namespace {

std::string quoted(const std::string& text) {
    return json::serialize(json::value(text));
}

} // namespace

struct KeeperClient::Reply {
    json::value body;
    std::vector<UniqueFd> fds;
};

Result<KeeperClient> KeeperClient::connect(const std::string& socket, Nanoseconds timeout) {
    KeeperClient client;
    BERTH_ASSIGN(client.socket_, connect_packets(socket));
    client.timeout_ = timeout;
    return client;
}

Result<KeeperClient::Reply> KeeperClient::exchange(const std::string& fields,
                                                   const std::vector<int>& fds) {
    if (!socket_)
        return fail(ErrorCode::kUnavailable, "the connection to the keeper is closed");
    uint64_t id = ++last_id_;
    std::string payload = fmt::format(R"({{"v":{},"id":{},{}}})", kKeeperVersion, id, fields);
    if (payload.size() > kPacketBytesMax || fds.size() > kKeeperFdsMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} bytes and {} descriptors are too much for the keeper, which "
                                "takes {} and {}",
                                payload.size(), fds.size(), kPacketBytesMax, kKeeperFdsMax));
    Status sent = send_packet(socket_.get(), payload, fds,
                              std::chrono::steady_clock::now() +
                                  std::chrono::duration_cast<Deadline::duration>(timeout_));
    Result<Reply> reply = sent ? receive_reply(id) : Result<Reply>(fail(sent.error()));
    if (!reply) {
        // A late reply must not be taken for the next request's.
        socket_.reset();
        return fail_in("keeper", std::move(reply).error());
    }
    // An error that the keeper says is a whole exchange: the connection stays.
    json::Reader reader(reply->body, "the keeper's reply");
    if (!reader.boolean("ok", false)) {
        const json::value* error = reader.any("error");
        return fail_in("keeper", error != nullptr ? json::to_error(*error) : Error{});
    }
    return reply;
}

Result<KeeperClient::Reply> KeeperClient::receive_reply(uint64_t id) {
    auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<Deadline::duration>(timeout_);
    BERTH_ASSIGN(Packet packet, receive_packet(socket_.get(), deadline));
    Reply reply;
    reply.fds = std::move(packet.fds);
    BERTH_ASSIGN(reply.body, json::parse(packet.payload, "the keeper's reply"));
    json::Reader reader(reply.body, "the keeper's reply");
    uint64_t version = reader.unsigned_integer("v");
    uint64_t answered = reader.unsigned_integer("id");
    BERTH_TRY(reader.allow_unknown().finish());
    // id 0: the keeper could not read even the request's id.
    if (version != kKeeperVersion || (answered != id && answered != 0))
        return fail(ErrorCode::kMismatch,
                    fmt::format("a reply of version {} to request {}; expected version {}, "
                                "request {}",
                                version, answered, kKeeperVersion, id));
    return reply;
}

Status KeeperClient::put(const std::string& key, const std::string& meta,
                         const std::vector<int>& fds) {
    BERTH_TRY(exchange(fmt::format(R"("op":"put","key":{},"meta":{})", quoted(key), meta), fds));
    return {};
}

Result<KeptEntry> KeeperClient::get(const std::string& key) {
    BERTH_ASSIGN(Reply reply, exchange(fmt::format(R"("op":"get","key":{})", quoted(key)), {}));
    json::Reader reader(reply.body, "the keeper's entry");
    KeptEntry entry;
    entry.key = reader.string("key");
    uint64_t count = reader.unsigned_integer("fds");
    if (const json::value* meta = reader.any("meta"))
        entry.meta = json::serialize(*meta);
    BERTH_TRY(reader.allow_unknown().finish());
    if (count != reply.fds.size())
        return fail(ErrorCode::kCorrupt,
                    fmt::format("the keeper's '{}' came with {} descriptors, expected {}; this "
                                "process may be out of descriptors (RLIMIT_NOFILE)",
                                key, reply.fds.size(), count));
    entry.fds = std::move(reply.fds);
    return entry;
}

Result<std::vector<KeeperEntry>> KeeperClient::list() {
    std::vector<KeeperEntry> all;
    for (;;) {
        std::string after = all.empty() ? std::string() : all.back().key;
        BERTH_ASSIGN(Reply reply,
                     exchange(fmt::format(R"("op":"list","after":{})", quoted(after)), {}));
        json::Reader page(reply.body, "the keeper's list");
        bool more = page.boolean("more", false);
        const json::value* entries = page.any("entries");
        if (entries == nullptr || !entries->is_array())
            return fail(ErrorCode::kCorrupt, "the keeper's list has no entries");
        for (const json::value& item : entries->get_array()) {
            json::Reader reader(item, "the keeper's entry");
            KeeperEntry entry;
            entry.key = reader.string("key");
            entry.fds = reader.unsigned_integer("fds");
            if (const json::value* meta = reader.any("meta"))
                entry.meta = json::serialize(*meta);
            BERTH_TRY(reader.allow_unknown().finish());
            all.push_back(std::move(entry));
        }
        if (!more || entries->get_array().empty())
            return all;
    }
}

Status KeeperClient::drop(const std::string& key) {
    BERTH_TRY(exchange(fmt::format(R"("op":"drop","key":{})", quoted(key)), {}));
    return {};
}

Result<KeeperInfo> KeeperClient::ping() {
    BERTH_ASSIGN(Reply reply, exchange(R"("op":"ping")", {}));
    json::Reader reader(reply.body, "the keeper's reply");
    KeeperInfo info;
    info.pid = static_cast<int>(reader.integer("pid"));
    info.entries = reader.unsigned_integer("entries");
    info.descriptors = reader.unsigned_integer("descriptors");
    info.version = reader.string("version");
    BERTH_TRY(reader.allow_unknown().finish());
    return info;
}

} // namespace berth
