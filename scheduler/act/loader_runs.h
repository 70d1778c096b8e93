// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "engine_shim/protocol/messages.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/act/launch.h"
#include "scheduler/node/event.h"
#include "scheduler/wire/packet_channel.h"

#include <functional>
#include <map>
#include <memory>

namespace berth {

// What a loader, or an engine that publishes, has handed over.
struct HandedSet {
    UniqueFd manifest;
    std::vector<UniqueFd> segments;
    std::vector<uint64_t> segment_bytes;
    std::string fingerprint;
    std::string fingerprint_json;
    protocol::Phases phases;
    uint64_t bytes_read = 0;
    std::string path;  // of a published set: what it was made from,
    std::string model; // and its model's name
};
// What a Sealed and its descriptors (the manifest's first) say of it.
HandedSet handed_set(const protocol::Sealed& sealed, std::vector<UniqueFd> fds);

// How a berth-loader is started that talks on descriptor 3.
struct LoaderLaunch {
    node::LoadId load{};
    std::vector<std::string> arguments; // but for the control descriptor
    std::vector<int> sources;           // inherited from 4 on; the caller's until start() returns
    node::DeviceId device;              // the only GPU that it sees, where it is one
    std::string what;                   // for the log
};
LoaderLaunch checkpoint_launch(const node::StartLoad& load,
                               const protocol::Environment& environment);

// The runs of berth-loader: one process a load, at the other end of a socket pair. What it says
// becomes events; its exit always does, as the last one. A loader ends with its berthd. Thread
// rule: the io_context's one thread.
class LoaderRuns {
  public:
    using Sink = std::function<void(node::Event)>;
    LoaderRuns(boost::asio::io_context& context, const NodePaths& paths, Sink sink)
        : context_(context), paths_(paths), sink_(std::move(sink)) {}
    LoaderRuns(const LoaderRuns&) = delete;
    LoaderRuns& operator=(const LoaderRuns&) = delete;

    void start(const LoaderLaunch& launch);
    void go(node::LoadId id);
    void refuse(node::LoadId id, Error error);
    void kill(node::LoadId id);
    // The sealed set, once; nullopt when it is not there.
    std::optional<HandedSet> take_sealed(node::LoadId id);
    // The keeper has it: the loader may exit.
    void kept(node::LoadId id);
    // The process of a load, 0 when there is none.
    int pid(node::LoadId id) const;

  private:
    struct Run {
        Process process;
        FdWatch watch;
        std::shared_ptr<PacketChannel> channel;
        uint64_t planned_id = 0;
        std::string fingerprint_json;
        std::optional<HandedSet> sealed;
        bool ended = false;  // the process
        bool closed = false; // the socket, after all it had said was read
        bool said_failed = false;
        bool said_sealed = false;
        int wait_status = 0;
    };
    Status spawn(const LoaderLaunch& launch);
    void receive(node::LoadId id, Packet packet);
    void handle(node::LoadId id, Run& run, protocol::Message message, std::vector<UniqueFd> fds);
    void handle_sealed(node::LoadId id, Run& run, protocol::Sealed sealed,
                       std::vector<UniqueFd> fds);
    void fail_run(node::LoadId id, Error error);
    void ended(node::LoadId id);
    void finish_if_done(node::LoadId id);
    void tell(node::LoadId id, const protocol::Message& message);

    boost::asio::io_context& context_;
    const NodePaths& paths_;
    Sink sink_;
    std::map<node::LoadId, Run> runs_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

} // namespace berth
