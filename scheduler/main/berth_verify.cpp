// SPDX-License-Identifier: Apache-2.0
// berth-verify: computes a resident weight set's checksums anew, in a process of its own, so that
// berthd neither maps weights nor opens a device. berthd starts it with descriptor 3, sends one
// message, {"device": ID, "segment_bytes": [...]} with the manifest and the segments (and with
// "gate": true that device's gate page), and gets one back: {"tensors": N, "mismatched": [names]}
// or
// {"error": {...}}.
#include "base/json.h"
#include "base/packet_socket.h"
#include "cache/memory/device.h"
#include "engine_shim/protocol/gate_page.h"
#include "scheduler/act/deep_hash.h"
#include "scheduler/main/gated_verify.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <limits>

namespace berth {
namespace {

constexpr int kControlFd = 3;
constexpr int64_t kLowestClass = std::numeric_limits<int64_t>::min(); // it waits for everybody
constexpr size_t kNamesMax = 100; // of tensors that differ, in the reply

Result<json::object> verify_packet(Packet packet) {
    BERTH_ASSIGN(json::value request, json::parse(packet.payload, "the request"));
    json::Reader reader(request, "the request");
    std::string device_id = reader.string("device");
    const json::value* listed = reader.any("segment_bytes");
    const bool has_gate = reader.boolean("gate", false);
    BERTH_TRY(reader.finish());
    std::vector<uint64_t> segment_bytes;
    if (listed != nullptr && listed->is_array())
        for (const json::value& one : listed->get_array())
            segment_bytes.push_back(one.to_number<uint64_t>());
    GateWatcher gate;
    if (has_gate && !packet.fds.empty()) {
        BERTH_ASSIGN(gate, GateWatcher::open(packet.fds.back(), kLowestClass));
        packet.fds.pop_back();
    }
    if (packet.fds.size() != segment_bytes.size() + 1)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} descriptors came for a manifest and {} segments",
                                packet.fds.size(), segment_bytes.size()));
    BERTH_ASSIGN(Manifest manifest, Manifest::open(packet.fds.front(), segment_bytes));
    BERTH_ASSIGN(std::unique_ptr<Device> device, open_device(device_id));
    std::vector<Mapping> mappings;
    for (size_t i = 0; i < segment_bytes.size(); ++i) {
        BERTH_ASSIGN(Mapping mapping,
                     device->map_read_only({std::move(packet.fds[i + 1]), segment_bytes[i]}));
        mappings.push_back(std::move(mapping));
    }
    BERTH_ASSIGN(std::vector<std::string> differ, verify_behind(gate, *device, manifest, mappings));
    json::array names;
    for (size_t i = 0; i < differ.size() && i < kNamesMax; ++i)
        names.emplace_back(differ[i]);
    return json::object{{"tensors", manifest.size()},
                        {"bytes", manifest.weight_bytes()},
                        {"deepHash", deep_hash(manifest)},
                        {"mismatchedCount", differ.size()},
                        {"mismatched", std::move(names)}};
}

Status serve() {
    auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    BERTH_ASSIGN(Packet packet, receive_packet(kControlFd, soon));
    auto verified = verify_packet(std::move(packet));
    json::object reply =
        verified ? *verified : json::object{{"error", json::from_error(verified.error())}};
    return send_packet(kControlFd, json::serialize(reply), {},
                       std::chrono::steady_clock::now() + std::chrono::seconds(10));
}

} // namespace
} // namespace berth

int main() {
    if (auto served = berth::serve(); !served) {
        std::fprintf(stderr, "berth-verify: %s; it is started by berthd alone\n",
                     served.error().message.c_str());
        return 1;
    }
    return 0;
}
