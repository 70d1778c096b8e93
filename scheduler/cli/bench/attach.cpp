// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/client.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/guest.h"

namespace berth::cli::bench {

namespace {

struct Samples {
    std::vector<double> attach, reply, floor, connect;
};

// The calls that any sharing of these segments must make, and nothing else. Unmapping is not timed.
Result<double> map_raw(Device& device, const Guest::Attached& held) {
    std::vector<Mapping> mappings;
    mappings.reserve(held.segments.size());
    auto began = Clock::now();
    for (const Segment& segment : held.segments) {
        BERTH_ASSIGN(Mapping mapping, device.map_read_only(segment));
        mappings.push_back(std::move(mapping));
    }
    return milliseconds_since(began);
}

Status one_round(Client& client, Guest& guest, const Guest::Attached& held, const Target& target,
                 Samples& samples) {
    BERTH_ASSIGN(double raw, map_raw(client.device(), held));
    samples.floor.push_back(raw);
    auto began = Clock::now();
    {
        BERTH_ASSIGN(Guest::Attached again, guest.attach(target));
        samples.reply.push_back(milliseconds_since(began));
    }
    AttachRequest request;
    request.weight_set = target.set;
    request.wait = false;
    began = Clock::now();
    BERTH_ASSIGN(WeightSet set, client.attach(request));
    samples.attach.push_back(milliseconds_since(began));
    if (set.manifest().size() == 0)
        return fail(ErrorCode::kCorrupt, "the set that was attached has no tensors");
    return {};
}

} // namespace

Status attach(const AdminClient& admin, const Options& options) {
    BERTH_ASSIGN(Target target, resident_target(admin, options));
    ClientOptions guest_options;
    guest_options.socket = target.socket;
    guest_options.device = target.device;
    guest_options.program = "berth bench";
    BERTH_ASSIGN(std::unique_ptr<Client> client, Client::connect(guest_options));
    BERTH_TRY(client->device().synchronize()); // the context is made here, untimed
    BERTH_ASSIGN(Guest guest, Guest::connect(target.socket));
    BERTH_ASSIGN(Guest::Attached held, guest.attach(target));
    Samples samples;
    Samples warm_up;
    BERTH_TRY(one_round(*client, guest, held, target, warm_up));
    for (int round = 0; round < options.rounds_or(100); ++round)
        BERTH_TRY(one_round(*client, guest, held, target, samples));
    for (int round = 0; round < std::min(20, options.rounds_or(100)); ++round) {
        auto began = Clock::now();
        BERTH_ASSIGN(std::unique_ptr<Client> other, Client::connect(guest_options));
        samples.connect.push_back(milliseconds_since(began));
    }
    json::object facts{{"device", target.device},
                       {"weightSet", target.set},
                       {"bytes", target.bytes},
                       {"tensors", target.tensors},
                       {"segments", held.segments.size()}};
    const std::string raw = target.device.starts_with("host")
                                ? "mmap of the same descriptors, in this process and run"
                                : "import, reserve, map and set access of the same descriptors, in "
                                  "this process and run";
    print_figures(
        {{"attach", "attach", samples.attach, samples.floor, raw,
          "libberth's request until all is mapped and the manifest opened; without process start, "
          "context, connect and hello",
          facts},
         {"attach",
          "reply",
          samples.reply,
          {},
          "none",
          "the round trip alone: request until berthd's descriptors are here, nothing mapped",
          facts},
         {"attach",
          "connect",
          samples.connect,
          {},
          "none",
          "libberth's connect and hello, with its thread's start",
          facts}},
        options.json);
    return {};
}

} // namespace berth::cli::bench
