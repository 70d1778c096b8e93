// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/guest.h"

#include "engine_shim/client/client.h"

#include <fmt/format.h>

#include <filesystem>
#include <unistd.h>

namespace berth::cli::bench {

namespace {

constexpr std::chrono::seconds kReplyMax{10};

std::string socket_beside(const AdminClient& client, const std::string& chosen) {
    if (!chosen.empty())
        return chosen;
    if (std::string admin = client.socket_path(); !admin.empty())
        return (std::filesystem::path(admin).parent_path() / "berthd.sock").string();
    return default_socket();
}

} // namespace

Result<Target> resident_target(const AdminClient& client, const Options& options) {
    BERTH_ASSIGN(json::value reply, client.get("/v1/weights"));
    BERTH_ASSIGN(json::array items, items_of(reply));
    for (const json::value& value : items) {
        const json::object& item = value.get_object();
        bool wanted = options.weights.empty()
                          ? options.model.empty() || text_at(item, "model") == options.model
                          : text_at(item, "id") == options.weights;
        if (wanted && text_at(item, "state") == "Resident")
            return Target{socket_beside(client, options.socket), text_at(item, "id"),
                          text_at(item, "device"), number_at(item, "bytes"),
                          number_at(item, "tensors")};
    }
    return fail(ErrorCode::kNotFound,
                "no such weight set is resident: 'berth load MODEL --wait' brings one there, "
                "'berth get weights' lists what is",
                "NotResident");
}

Result<Guest> Guest::connect(const std::string& socket) {
    Guest guest;
    BERTH_ASSIGN(guest.socket_, connect_packets(socket));
    protocol::Hello hello;
    hello.id = guest.next_id_++;
    hello.program = "berth bench";
    hello.pid = static_cast<int>(::getpid());
    auto until = std::chrono::steady_clock::now() + kReplyMax;
    BERTH_TRY(protocol::send(guest.socket_.get(), hello, {}, until));
    BERTH_ASSIGN(protocol::Received reply, protocol::receive(guest.socket_.get(), until));
    if (const auto* failed = std::get_if<protocol::Failed>(&reply.message))
        return fail(failed->error);
    if (!std::holds_alternative<protocol::Welcome>(reply.message))
        return fail(ErrorCode::kCorrupt, "berthd answered a hello with something else");
    return guest;
}

Result<Guest::Attached> Guest::attach(const Target& target) {
    protocol::Attach request;
    request.id = next_id_++;
    request.weight_set = target.set;
    request.device = target.device;
    request.wait = false;
    auto until = std::chrono::steady_clock::now() + kReplyMax;
    BERTH_TRY(protocol::send(socket_.get(), request, {}, until));
    for (;;) {
        BERTH_ASSIGN(protocol::Received reply, protocol::receive(socket_.get(), until));
        if (const auto* failed = std::get_if<protocol::Failed>(&reply.message))
            return fail(failed->error);
        const auto* attached = std::get_if<protocol::Attached>(&reply.message);
        if (attached == nullptr)
            continue;
        if (reply.fds.size() != attached->segment_bytes.size() + 1)
            return fail(ErrorCode::kCorrupt,
                        fmt::format("{} segments came with {} descriptors",
                                    attached->segment_bytes.size(), reply.fds.size()));
        Attached got;
        got.manifest = std::move(reply.fds.front());
        for (size_t i = 0; i < attached->segment_bytes.size(); ++i)
            got.segments.push_back(
                Segment{std::move(reply.fds[i + 1]), attached->segment_bytes[i]});
        return got;
    }
}

} // namespace berth::cli::bench
