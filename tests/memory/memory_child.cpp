// SPDX-License-Identifier: Apache-2.0
// The second process of the memory and gate tests, driven over descriptor 3:
//
//   read DEVICE BYTES    receives a segment, maps it, answers its bytes' hash; then waits
//   write DEVICE BYTES   receives a segment, maps it, answers "mapped", writes through the mapping
//   own DEVICE BYTES     makes a segment of the pattern, seals it, sends it; then waits
//   raise SLOT CLASS     receives a gate page, raises, answers "raised"; then waits
//   grant DEVICE BYTES   takes a grant of that size, answers "granted"; then waits
#include "base/packet_socket.h"
#include "cache/memory/device.h"
#include "engine_shim/protocol/gate_page.h"
#include "tests/memory/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace berth;

constexpr int kSocket = 3;

Deadline later() {
    return std::chrono::steady_clock::now() + std::chrono::minutes(2);
}

Status say(const std::string& text, const std::vector<int>& fds = {}) {
    return send_packet(kSocket, text, fds, later());
}

// Until the other side closes, or kills this one.
void wait_for_the_end() {
    (void)receive_packet(kSocket, later());
}

Result<Segment> receive_segment(uint64_t bytes) {
    BERTH_ASSIGN(Packet packet, receive_packet(kSocket, later()));
    if (packet.fds.size() != 1)
        return fail(ErrorCode::kInternal, "expected one descriptor");
    return Segment{std::move(packet.fds.front()), bytes};
}

Status read_segment(Device& device, uint64_t bytes) {
    BERTH_ASSIGN(Segment segment, receive_segment(bytes));
    BERTH_ASSIGN(Mapping mapping, device.map_read_only(segment));
    segment.fd.reset();
    std::vector<std::byte> copy(bytes);
    BERTH_TRY(device.copy_to_host(copy.data(), mapping.data(), bytes));
    BERTH_TRY(say(test::hash_of(copy)));
    // Once more when asked to: what was mapped must stay, whatever happened to its owner.
    BERTH_TRY(receive_packet(kSocket, later()));
    std::fill(copy.begin(), copy.end(), std::byte{0});
    BERTH_TRY(device.copy_to_host(copy.data(), mapping.data(), bytes));
    BERTH_TRY(say(test::hash_of(copy)));
    wait_for_the_end();
    return {};
}

Status write_segment(Device& device, uint64_t bytes) {
    BERTH_ASSIGN(Segment segment, receive_segment(bytes));
    BERTH_ASSIGN(Mapping mapping, device.map_read_only(segment));
    BERTH_TRY(say("mapped"));
    if (device.capabilities().cpu_addressable) {
        *const_cast<volatile std::byte*>(mapping.data()) = std::byte{1};
        return fail(ErrorCode::kInternal, "the write went through");
    }
    std::vector<std::byte> zeros(4096);
    return device.copy_to_device(mapping.data(), zeros.data(), zeros.size());
}

Status own_segment(Device& device, uint64_t bytes) {
    BERTH_ASSIGN(auto writable, device.create_segment(bytes, "berth-weights"));
    std::vector<std::byte> pattern = test::pattern_of(writable->bytes(), 7);
    BERTH_TRY(device.copy_to_device(writable->data(), pattern.data(), pattern.size()));
    BERTH_ASSIGN(Segment segment, writable->seal());
    BERTH_TRY(say(test::hash_of(pattern), {segment.fd.get()}));
    wait_for_the_end();
    return {};
}

Status raise_gate(const std::string& slot, const std::string& class_value) {
    BERTH_ASSIGN(Packet packet, receive_packet(kSocket, later()));
    if (packet.fds.size() != 1)
        return fail(ErrorCode::kInternal, "expected one descriptor");
    BERTH_ASSIGN(GateRaiser raiser,
                 GateRaiser::open(packet.fds.front(), static_cast<uint32_t>(std::stoul(slot)),
                                  std::stoll(class_value)));
    packet.fds.clear();
    raiser.raise();
    BERTH_TRY(say("raised"));
    wait_for_the_end();
    return {};
}

Status hold_grant(Device& device, uint64_t bytes) {
    BERTH_ASSIGN(auto grant, device.create_grant(bytes));
    BERTH_TRY(grant->resize(bytes));
    BERTH_TRY(say("granted"));
    wait_for_the_end();
    return {};
}

Status run(const std::string& mode, const std::string& first, const std::string& second) {
    if (mode == "raise")
        return raise_gate(first, second);
    BERTH_ASSIGN(auto device, open_device(first));
    uint64_t bytes = std::stoull(second);
    if (mode == "read")
        return read_segment(*device, bytes);
    if (mode == "write")
        return write_segment(*device, bytes);
    if (mode == "own")
        return own_segment(*device, bytes);
    if (mode == "grant")
        return hold_grant(*device, bytes);
    return fail(ErrorCode::kInvalidArgument, fmt::format("unknown mode '{}'", mode));
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        fmt::print(stderr, "usage: memory_child MODE ARGUMENT ARGUMENT\n");
        return 2;
    }
    if (auto done = run(argv[1], argv[2], argv[3]); !done) {
        (void)say("error: " + done.error().message);
        return 7;
    }
    return 0;
}
