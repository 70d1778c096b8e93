// SPDX-License-Identifier: Apache-2.0
#include "base/packet_socket.h"
#include "cache/weights/manifest.h"
#include "engine_shim/client/client.h"
#include "scheduler/cli/bench/bare_server.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/guest.h"
#include "scheduler/cli/bench/node_calls.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <barrier>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>

namespace berth::cli::bench {

namespace {

constexpr size_t kClients = 64;
constexpr size_t kEach = 32; // attaches of one client in one wave
constexpr std::chrono::seconds kGoneMax{10};

// One client's attach and leave.
using Visit = std::function<Status(Device&)>;

Status map_all(Device& device, const Guest::Attached& got) {
    std::vector<uint64_t> sizes;
    std::vector<Mapping> mappings;
    for (const Segment& segment : got.segments) {
        BERTH_ASSIGN(Mapping mapping, device.map_read_only(segment));
        mappings.push_back(std::move(mapping));
        sizes.push_back(segment.bytes);
    }
    BERTH_ASSIGN(Manifest manifest, Manifest::open(got.manifest, sizes));
    return manifest.size() > 0
               ? Status()
               : fail(ErrorCode::kCorrupt, "the set that was attached has no tensors");
}

Status visit_as_guest(const Target& target, Device& device) {
    BERTH_ASSIGN(Guest guest, Guest::connect(target.socket));
    BERTH_ASSIGN(Guest::Attached got, guest.attach(target));
    return map_all(device, got);
}

Status visit_with_library(const Target& target) {
    ClientOptions options;
    options.socket = target.socket;
    options.device = target.device;
    options.program = "berth bench";
    BERTH_ASSIGN(std::unique_ptr<Client> client, Client::connect(options));
    AttachRequest request;
    request.weight_set = target.set;
    request.wait = false;
    BERTH_ASSIGN(WeightSet set, client->attach(request));
    return set.manifest().size() > 0
               ? Status()
               : fail(ErrorCode::kCorrupt, "the set that was attached has no tensors");
}

// The same system calls as a guest's visit, with nothing said and nothing parsed.
Status visit_bare(const std::string& path, const Target& target, size_t segments, Device& device) {
    auto until = std::chrono::steady_clock::now() + kGoneMax;
    BERTH_ASSIGN(UniqueFd socket, connect_packets(path));
    BERTH_TRY(send_packet(socket.get(), "?", {}, until));
    BERTH_TRY(receive_packet(socket.get(), until));
    BERTH_TRY(send_packet(socket.get(), "?", {}, until));
    BERTH_ASSIGN(Packet reply, receive_packet(socket.get(), until));
    if (reply.fds.size() != segments + 1)
        return fail(ErrorCode::kInternal, "the bare server sent no descriptors");
    for (size_t i = 1; i < reply.fds.size(); ++i) {
        Segment segment{std::move(reply.fds[i]), target.bytes / segments};
        BERTH_TRY(device.map_read_only(segment));
    }
    return {};
}

// All clients at once, kEach visits each; attaches per second.
Result<double> wave(const std::string& device_id, const Visit& visit) {
    std::mutex mutex;
    std::optional<Error> first_error;
    std::barrier<> together(kClients + 1);
    std::vector<std::thread> clients;
    for (size_t i = 0; i < kClients; ++i)
        clients.emplace_back([&] {
            auto device = open_device(device_id);
            together.arrive_and_wait();
            Status status = device ? Status() : fail(device.error());
            for (size_t round = 0; round < kEach && status; ++round)
                status = visit(**device);
            if (!status) {
                std::lock_guard lock(mutex);
                if (!first_error)
                    first_error = status.error();
            }
        });
    together.arrive_and_wait();
    auto began = Clock::now();
    for (std::thread& client : clients)
        client.join();
    double seconds = milliseconds_since(began) / 1e3;
    if (first_error)
        return fail(*first_error);
    return static_cast<double>(kClients * kEach) / seconds;
}

struct Left {
    uint64_t descriptors = 0;
    uint64_t leases = 0;
};

Result<Left> held_by_daemon(const AdminClient& admin, uint64_t pid, const std::string& set) {
    Left left;
    std::error_code error;
    for (auto at = std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), error);
         !error && at != std::filesystem::directory_iterator(); at.increment(error))
        ++left.descriptors;
    if (error)
        return fail(ErrorCode::kIo,
                    fmt::format("/proc/{}/fd: {}: this bench counts berthd's descriptors, so it "
                                "runs as berthd's user, on its machine",
                                pid, error.message()));
    BERTH_ASSIGN(json::value reply, admin.get("/v1/weights/" + set));
    if (reply.is_object())
        left.leases = number_at(reply.get_object(), "leases");
    return left;
}

// berthd sees a client's end a moment after the client itself.
Status nothing_is_left(const AdminClient& admin, uint64_t pid, const std::string& set,
                       const Left& before) {
    auto until = Clock::now() + kGoneMax;
    for (;;) {
        BERTH_ASSIGN(Left now, held_by_daemon(admin, pid, set));
        if (now.descriptors <= before.descriptors && now.leases <= before.leases)
            return {};
        if (Clock::now() > until)
            return fail(ErrorCode::kFailedPrecondition,
                        fmt::format("after the storm berthd holds {} descriptors and {} leases, "
                                    "before it {} and {}: something leaks, or others attached "
                                    "meanwhile",
                                    now.descriptors, now.leases, before.descriptors, before.leases),
                        "Leaked");
        pause_between_looks(std::chrono::milliseconds(10));
    }
}

} // namespace

Status attach_storm(const AdminClient& admin, const Options& options) {
    BERTH_ASSIGN(Target target, resident_target(admin, options));
    BERTH_ASSIGN(json::value node, admin.get("/v1/node"));
    uint64_t pid = node.is_object() ? number_at(node.get_object(), "pid") : 0;
    BERTH_ASSIGN(Guest guest, Guest::connect(target.socket));
    BERTH_ASSIGN(Guest::Attached held, guest.attach(target));
    std::vector<int> fds{held.manifest.get()};
    for (const Segment& segment : held.segments)
        fds.push_back(segment.fd.get());
    const std::string bare_path =
        (std::filesystem::temp_directory_path() / fmt::format("berth-bare-{}.sock", ::getpid()))
            .string();
    BERTH_ASSIGN(std::unique_ptr<BareServer> bare, BareServer::start(bare_path, fds));

    Visit as_guest = [&](Device& device) { return visit_as_guest(target, device); };
    Visit with_library = [&](Device&) { return visit_with_library(target); };
    Visit with_bare = [&](Device& device) {
        return visit_bare(bare_path, target, held.segments.size(), device);
    };
    BERTH_TRY(wave(target.device, as_guest)); // warm-up
    BERTH_ASSIGN(Left before, held_by_daemon(admin, pid, target.set));
    std::vector<double> guests, library, floor, daemon_us;
    for (int round = 0; round < options.rounds_or(10); ++round) {
        BERTH_ASSIGN(double least, wave(target.device, with_bare));
        floor.push_back(least);
        BERTH_ASSIGN(double cpu_before, cpu_seconds(pid));
        BERTH_ASSIGN(double rate, wave(target.device, as_guest));
        BERTH_ASSIGN(double cpu_after, cpu_seconds(pid));
        guests.push_back(rate);
        daemon_us.push_back((cpu_after - cpu_before) * 1e6 / static_cast<double>(kClients * kEach));
        BERTH_ASSIGN(double slower, wave(target.device, with_library));
        library.push_back(slower);
    }
    BERTH_TRY(nothing_is_left(admin, pid, target.set, before));
    json::object facts{
        {"device", target.device}, {"clients", kClients}, {"attachesPerWave", kClients * kEach},
        {"descriptorsLeaked", 0},  {"leasesLeft", 0},     {"goal", 3000}};
    print_figures(
        {{"attach-storm", "attaches", guests, floor,
          "the same calls to a bare server in this process: connect, two messages, the "
          "descriptors, map, close; a rate, so the ratio is below 1",
          "connect, hello, attach, map, open the manifest and leave, by 64 threads at once; a wave "
          "a round",
          facts, "attaches/s"},
         {"attach-storm", "libberth", library, floor, "the same",
          "the same through libberth, which starts and ends a thread for each connection",
          json::object(), "attaches/s"},
         {"attach-storm",
          "daemon",
          daemon_us,
          {},
          "none",
          "berthd's CPU time for one attach of the first figure, to the clock's 10 ms a wave",
          json::object(),
          "us"}},
        options.json);
    return {};
}

} // namespace berth::cli::bench
