// SPDX-License-Identifier: Apache-2.0
#include "cache/load/main/control.h"

#include <poll.h>

#include <chrono>

namespace berth {

namespace {

using namespace std::chrono_literals;

constexpr auto kSendLimit = 10s;
// Room may have to be made first: other instances' end is waited for. berthd's death ends the wait.
constexpr auto kGoLimit = 24h;
constexpr auto kKeptLimit = 10min;

Deadline in(std::chrono::steady_clock::duration time) {
    return std::chrono::steady_clock::now() + time;
}

// Waits for a message of one type; Failed is its error.
template <typename Expected>
Status expect(int socket, std::chrono::steady_clock::duration limit, std::string_view name) {
    BERTH_ASSIGN(protocol::Received received, protocol::receive(socket, in(limit)));
    if (std::holds_alternative<Expected>(received.message))
        return {};
    if (const auto* failed = std::get_if<protocol::Failed>(&received.message))
        return fail(failed->error);
    return fail(ErrorCode::kCorrupt,
                std::string("berthd sent another message than ") + std::string(name));
}

} // namespace

protocol::Planned planned(const LoadCost& cost) {
    protocol::Planned planned;
    planned.segment_bytes = cost.segment_bytes;
    planned.host_staging_bytes = cost.host_staging_bytes;
    planned.device_overhead_bytes = cost.device_overhead_bytes;
    return planned;
}

protocol::Planned planned(const LoadPlan& plan, const LoadCost& cost) {
    protocol::Planned said = planned(cost);
    said.fingerprint_json = plan.fingerprint().document;
    said.fingerprint = plan.fingerprint().sha256;
    said.tensors = plan.layout().tensors.size() + plan.layout().aliases.size();
    return said;
}

Status Control::ask(const protocol::Planned& planned) {
    BERTH_TRY(protocol::send(socket_.get(), planned, {}, in(kSendLimit)));
    return expect<protocol::Go>(socket_.get(), kGoLimit, "Go");
}

Status Control::progress(const std::string& phase, uint64_t done, uint64_t total) {
    BERTH_TRY(check_peer());
    protocol::Progress message;
    message.phase = phase;
    message.bytes_done = done;
    message.bytes_total = total;
    return protocol::send(socket_.get(), message, {}, in(kSendLimit));
}

Status Control::hand_over(const std::string& fingerprint, const LoadedSet& set) {
    protocol::Sealed sealed;
    sealed.fingerprint = fingerprint;
    sealed.segment_bytes = set.segment_bytes();
    sealed.bytes_read = set.bytes_read;
    sealed.phases = set.phases;
    std::vector<int> fds = {set.manifest.get()};
    for (const Segment& segment : set.segments)
        fds.push_back(segment.fd.get());
    BERTH_TRY(protocol::send(socket_.get(), sealed, fds, in(kSendLimit)));
    return expect<protocol::Kept>(socket_.get(), kKeptLimit, "Kept");
}

void Control::tell_failure(const Error& error) {
    (void)protocol::send(socket_.get(), protocol::Failed{0, error}, {}, in(kSendLimit));
}

Status Control::check_peer() {
    pollfd watched = {socket_.get(), POLLIN | POLLRDHUP, 0};
    if (::poll(&watched, 1, 0) <= 0)
        return {};
    if ((watched.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0)
        return fail(ErrorCode::kUnavailable, "berthd is gone: nobody is left to load for");
    BERTH_ASSIGN(protocol::Received received, protocol::receive(socket_.get(), in(kSendLimit)));
    if (const auto* failed = std::get_if<protocol::Failed>(&received.message))
        return fail(failed->error);
    return {};
}

} // namespace berth
