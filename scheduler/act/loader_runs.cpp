// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/loader_runs.h"

#include "base/descriptors.h"
#include "base/log.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <numeric>

namespace berth {

namespace {

// The id that other parts know a weight set by.
node::WeightSetId set_id(const std::string& fingerprint) {
    return node::WeightSetId(fingerprint.substr(0, 16));
}

uint64_t sum(const std::vector<uint64_t>& parts) {
    return std::accumulate(parts.begin(), parts.end(), uint64_t{0});
}

} // namespace

HandedSet handed_set(const protocol::Sealed& sealed, std::vector<UniqueFd> fds) {
    HandedSet set;
    set.manifest = std::move(fds.front());
    for (size_t i = 1; i < fds.size(); ++i)
        set.segments.push_back(std::move(fds[i]));
    set.segment_bytes = sealed.segment_bytes;
    set.fingerprint = sealed.fingerprint;
    set.phases = sealed.phases;
    set.bytes_read = sealed.bytes_read;
    return set;
}

LoaderLaunch checkpoint_launch(const node::StartLoad& load,
                               const protocol::Environment& environment) {
    LoaderLaunch launch;
    launch.load = load.load;
    launch.device = load.key.device;
    launch.arguments = {"--model",       load.key.path,
                        "--device",      load.key.device.value,
                        "--environment", protocol::environment_json(environment)};
    if (load.key.dtype != "auto")
        launch.arguments.insert(launch.arguments.end(), {"--dtype", load.key.dtype});
    if (load.key.quantization != "none")
        launch.arguments.insert(launch.arguments.end(), {"--quantization", load.key.quantization});
    if (load.key.ranks > 1)
        launch.arguments.insert(launch.arguments.end(), {"--tp", std::to_string(load.key.ranks),
                                                         "--ranks", std::to_string(load.key.rank)});
    launch.what = load.key.path;
    return launch;
}

void LoaderRuns::start(const LoaderLaunch& launch) {
    if (auto spawned = spawn(launch); !spawned) {
        // From a fresh turn, as every other outcome.
        boost::asio::post(context_, [this, alive = std::weak_ptr(alive_), id = launch.load,
                                     error = spawned.error()] {
            if (alive.expired())
                return;
            runs_.erase(id);
            sink_(node::LoadFailed{id, error});
            sink_(node::LoaderExited{id, "not started"});
        });
    }
}

Status LoaderRuns::spawn(const LoaderLaunch& launch) {
    BERTH_ASSIGN(auto ends, packet_pair());
    if (leaves_too_few(std::max(ends.first.get(), ends.second.get()), DescriptorUse::kOwn))
        return fail(too_many_descriptors("no loader is started"));
    SpawnOptions options;
    options.command = {paths_.program_dir + "/berth-loader", "--control-fd", "3"};
    options.command.insert(options.command.end(), launch.arguments.begin(), launch.arguments.end());
    // A GPU's id is that of no other device.
    options.environment["CUDA_VISIBLE_DEVICES"] =
        launch.device.value.starts_with("host-") ? "" : launch.device.value;
    BERTH_TRY(make_directories(paths_.state_dir + "/engines", 0750));
    options.log_path = paths_.state_dir + "/engines/berth-loader.log";
    options.ends_with_parent = true;
    options.inherit_fds = {{ends.second.get(), 3}};
    for (size_t i = 0; i < launch.sources.size(); ++i)
        options.inherit_fds.emplace_back(launch.sources[i], 4 + static_cast<int>(i));
    BERTH_ASSIGN(Process process, Process::spawn(options));
    node::LoadId id = launch.load;
    BERTH_ASSIGN(FdWatch watch,
                 FdWatch::open(context_, process.pidfd(), [this, id] { ended(id); }));
    Run& run = runs_[id];
    run.process = std::move(process);
    run.watch = std::move(watch);
    PacketChannel::Handlers handlers;
    handlers.on_packet = [this, id, alive = std::weak_ptr(alive_)](Packet packet) {
        if (!alive.expired())
            receive(id, std::move(packet));
    };
    handlers.on_bad_packet = [this, id, alive = std::weak_ptr(alive_)](const Error& error) {
        if (alive.expired())
            return;
        fail_run(id, error);
        kill(id);
    };
    handlers.on_close = [this, id, alive = std::weak_ptr(alive_)](const std::string&) {
        if (alive.expired())
            return;
        if (auto found = runs_.find(id); found != runs_.end())
            found->second.closed = true;
        finish_if_done(id);
    };
    run.channel = PacketChannel::open(context_, std::move(ends.first), std::move(handlers));
    log::info("load started load={} what={} device={} pid={}", static_cast<uint64_t>(id),
              launch.what, launch.device.value, run.process.id().pid);
    return {};
}

void LoaderRuns::receive(node::LoadId id, Packet packet) {
    auto found = runs_.find(id);
    if (found == runs_.end())
        return;
    auto message = protocol::decode(packet.payload);
    if (!message) {
        fail_run(id, message.error());
        kill(id);
        return;
    }
    handle(id, found->second, std::move(*message), std::move(packet.fds));
}

void LoaderRuns::handle(node::LoadId id, Run& run, protocol::Message message,
                        std::vector<UniqueFd> fds) {
    if (auto* planned = std::get_if<protocol::Planned>(&message)) {
        run.planned_id = planned->id;
        run.fingerprint_json = planned->fingerprint_json;
        node::LoadPlanned event;
        event.load = id;
        event.fingerprint = planned->fingerprint;
        event.set = set_id(planned->fingerprint);
        event.weight_bytes = sum(planned->segment_bytes);
        event.overhead_bytes = planned->device_overhead_bytes;
        sink_(std::move(event));
    } else if (auto* progress = std::get_if<protocol::Progress>(&message)) {
        sink_(node::LoadProgress{id, progress->phase, progress->bytes_done, progress->bytes_total});
    } else if (auto* sealed = std::get_if<protocol::Sealed>(&message)) {
        handle_sealed(id, run, std::move(*sealed), std::move(fds));
    } else if (auto* failed = std::get_if<protocol::Failed>(&message)) {
        fail_run(id, failed->error);
    } else {
        fail_run(id, Error{ErrorCode::kCorrupt, "the loader sent a message that is not a loader's",
                           "LoaderProtocol", 0});
        kill(id);
    }
}

void LoaderRuns::handle_sealed(node::LoadId id, Run& run, protocol::Sealed sealed,
                               std::vector<UniqueFd> fds) {
    if (fds.size() != sealed.segment_bytes.size() + 1 || sealed.segment_bytes.empty() ||
        sealed.fingerprint.size() != 64) {
        fail_run(id, Error{ErrorCode::kCorrupt,
                           fmt::format("the loader handed over {} descriptors for {} segments and "
                                       "a manifest",
                                       fds.size(), sealed.segment_bytes.size()),
                           "LoaderProtocol", 0});
        kill(id);
        return;
    }
    run.said_sealed = true;
    HandedSet set = handed_set(sealed, std::move(fds));
    set.fingerprint_json = run.fingerprint_json;
    uint64_t bytes = sum(set.segment_bytes);
    std::string fingerprint = set.fingerprint;
    run.sealed = std::move(set);
    sink_(node::LoadSealed{id, fingerprint, set_id(fingerprint), bytes});
}

void LoaderRuns::fail_run(node::LoadId id, Error error) {
    auto found = runs_.find(id);
    if (found == runs_.end() || found->second.said_failed)
        return;
    found->second.said_failed = true;
    sink_(node::LoadFailed{id, std::move(error)});
}

void LoaderRuns::tell(node::LoadId id, const protocol::Message& message) {
    if (auto found = runs_.find(id); found != runs_.end())
        found->second.channel->send(protocol::encode(message));
}

void LoaderRuns::go(node::LoadId id) {
    protocol::Go go;
    if (auto found = runs_.find(id); found != runs_.end())
        go.id = found->second.planned_id;
    tell(id, go);
}

void LoaderRuns::refuse(node::LoadId id, Error error) {
    protocol::Failed failed;
    if (auto found = runs_.find(id); found != runs_.end()) {
        failed.id = found->second.planned_id;
        found->second.said_failed = true; // the node knows; the loader's echo is no news
    }
    failed.error = std::move(error);
    tell(id, failed);
}

void LoaderRuns::kept(node::LoadId id) {
    tell(id, protocol::Kept{});
}

void LoaderRuns::kill(node::LoadId id) {
    if (auto found = runs_.find(id); found != runs_.end())
        (void)found->second.process.signal_group(SIGKILL);
}

std::optional<HandedSet> LoaderRuns::take_sealed(node::LoadId id) {
    auto found = runs_.find(id);
    if (found == runs_.end())
        return std::nullopt;
    return std::exchange(found->second.sealed, std::nullopt);
}

int LoaderRuns::pid(node::LoadId id) const {
    auto found = runs_.find(id);
    return found == runs_.end() ? 0 : found->second.process.id().pid;
}

void LoaderRuns::ended(node::LoadId id) {
    auto found = runs_.find(id);
    if (found == runs_.end())
        return;
    found->second.wait_status = found->second.process.try_wait().value_or(kUnknownWaitStatus);
    found->second.ended = true;
    finish_if_done(id);
}

// A loader's last words are read before its end is told: both the process and the socket must be
// done.
void LoaderRuns::finish_if_done(node::LoadId id) {
    auto found = runs_.find(id);
    if (found == runs_.end() || !found->second.ended || !found->second.closed)
        return;
    Run run = std::move(found->second);
    runs_.erase(found);
    std::string how = describe_exit(run.wait_status);
    if (!run.said_sealed && !run.said_failed)
        sink_(node::LoadFailed{
            id, Error{ErrorCode::kUnavailable,
                      fmt::format("berth-loader ended ({}) before the weights were sealed; see "
                                  "{}/engines/berth-loader.log",
                                  how, paths_.state_dir),
                      "LoaderDied", 0}});
    sink_(node::LoaderExited{id, how});
}

} // namespace berth
