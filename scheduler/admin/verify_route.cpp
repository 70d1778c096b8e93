// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/admin_api.h"

#include "base/json.h"
#include "base/process.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/admin/bodies.h"
#include "scheduler/admin/wait.h"
#include "scheduler/wire/packet_channel.h"

#include <fmt/format.h>

#include <csignal>

namespace berth {

namespace asio = boost::asio;
using http::Request;
using http::Response;

namespace {

constexpr std::chrono::minutes kVerifyMax{30};

struct VerifyRun {
    Process process;
    FdWatch reaper;
    std::shared_ptr<PacketChannel> channel;
    std::string reply;
    std::string closed;
};
using RunPtr = std::shared_ptr<VerifyRun>;

// Starts berth-verify on a set; `done` is cancelled when it has answered or ended.
Result<RunPtr> start_verify(NodeContext& context, const ResidentSet& set,
                            std::shared_ptr<asio::steady_timer> done) {
    BERTH_ASSIGN(auto ends, packet_pair());
    SpawnOptions options;
    options.ends_with_parent = true;
    options.command = {context.paths.program_dir + "/berth-verify"};
    options.inherit_fds = {{ends.second.get(), 3}};
    options.log_path = context.paths.state_dir + "/engines/berth-verify.log";
    auto environment = context.environments.find(node::DeviceId(set.device));
    bool on_gpu =
        environment != context.environments.end() && environment->second.device_kind == "cuda";
    options.environment["CUDA_VISIBLE_DEVICES"] = on_gpu ? set.device : "";
    BERTH_TRY(make_directories(context.paths.state_dir + "/engines", 0750));
    json::array segment_bytes;
    for (const Segment& segment : set.segments)
        segment_bytes.emplace_back(segment.bytes);
    json::object request{{"device", set.device}, {"segment_bytes", std::move(segment_bytes)}};
    std::vector<int> descriptors = set.descriptors();
    if (const GateFds* gate = context.gates.find(node::DeviceId(set.device))) {
        request["gate"] = true;
        descriptors.push_back(gate->read_only.get());
    }
    auto run = std::make_shared<VerifyRun>();
    BERTH_ASSIGN(run->process, Process::spawn(options));
    // Reaps it whenever it ends; the run lives until then.
    auto reap = [run] { (void)run->process.try_wait(); };
    BERTH_ASSIGN(run->reaper, FdWatch::open(context.io, run->process.pidfd(), reap));
    PacketChannel::Handlers handlers;
    handlers.on_packet = [run, done](const Packet& packet) {
        run->reply = packet.payload;
        done->cancel();
    };
    handlers.on_close = [run, done](const std::string& why) {
        run->closed = why;
        done->cancel();
    };
    run->channel = PacketChannel::open(context.io, std::move(ends.first), std::move(handlers));
    run->channel->send(json::serialize(request), descriptors);
    return run;
}

// What the hash that was made at the load says of the one made now.
std::string deep_verdict(const NodeContext& context, const std::string& id,
                         const std::string& found) {
    auto known = context.deep_hashes.find(id);
    if (known == context.deep_hashes.end())
        return "none was stored when it was loaded";
    return known->second == found ? "as it was loaded"
                                  : "the one stored when it was loaded is " + known->second;
}

} // namespace

// A read, however long it takes: the answer is the result, no operation is kept of it.
asio::awaitable<Response> AdminApi::verify(Request request) {
    NodeContext& context = parts_.context;
    const ResidentSet* set = context.catalogue.find(request.params["id"]);
    if (set == nullptr)
        co_return http::error_response(Error{
            ErrorCode::kNotFound,
            fmt::format("no weight set '{}' is resident", request.params["id"]), "NotResident", 0});
    auto wanted = bodies::read_verify(request.body);
    if (!wanted)
        co_return http::error_response(wanted.error());
    const bool deep = *wanted;
    auto started = std::chrono::steady_clock::now();
    std::string id = set->id;
    auto done = std::make_shared<asio::steady_timer>(context.io, started + kVerifyMax);
    auto run = start_verify(context, *set, done);
    if (!run)
        co_return http::error_response(run.error());
    request.peer->on_closed([done] { done->cancel(); });
    (void)co_await done->async_wait(asio::as_tuple(asio::use_awaitable));
    VerifyRun& ended = **run;
    ended.channel->close("answered");
    (void)ended.process.signal_group(SIGKILL);
    auto reply = ended.reply.empty() ? fail(ErrorCode::kUnavailable,
                                            fmt::format("berth-verify ended without an answer; see "
                                                        "{}/engines/berth-verify.log",
                                                        context.paths.state_dir))
                                     : json::parse(ended.reply, "berth-verify's answer");
    if (!reply)
        co_return http::error_response(reply.error());
    json::object shown = reply->get_object();
    if (const json::value* error = shown.if_contains("error"))
        co_return http::error_response(json::to_error(*error));
    bool sound = shown.at("mismatchedCount").to_number<uint64_t>() == 0;
    if (deep) {
        std::string hash(shown.at("deepHash").as_string());
        shown["deepVerdict"] = deep_verdict(context, id, hash);
        auto stored = context.deep_hashes.find(id);
        sound = sound && (stored == context.deep_hashes.end() || stored->second == hash);
    }
    shown["id"] = id;
    shown["ok"] = sound;
    shown["ms"] =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started)
            .count();
    context.note(!sound, "weights/" + id, sound ? "Verified" : "ChecksumMismatch",
                 sound
                     ? "every checksum is as it was loaded"
                     : fmt::format("{} tensors differ from what was loaded, or the deep hash does: "
                                   "evict the set with --drop and load it again",
                                   shown.at("mismatchedCount").to_number<uint64_t>()));
    co_return http::json_response(shown);
}

} // namespace berth
