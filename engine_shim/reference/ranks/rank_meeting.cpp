// SPDX-License-Identifier: Apache-2.0
// How the ranks of an instance find each other: rank 0 listens on an abstract Unix socket of a
// random name, which the others find in the store. All are on one machine: berthd's node.
#include "base/packet_socket.h"
#include "engine_shim/reference/ranks/rank_links.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace berth::engine {

namespace {

constexpr const char* kAddressName = "berth/rank0";
constexpr int kBacklog = 128;
constexpr auto kHelloWait = std::chrono::seconds(10); // from a connection to its first words

struct Address {
    sockaddr_un name{};
    socklen_t bytes = 0;
};

Result<Address> abstract_address(const std::string& name) {
    Address address;
    address.name.sun_family = AF_UNIX;
    if (name.size() + 1 > sizeof address.name.sun_path)
        return fail(ErrorCode::kCorrupt, fmt::format("'{:.60}' is no rank's address", name));
    std::memcpy(address.name.sun_path + 1, name.data(), name.size());
    address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return address;
}

Result<UniqueFd> stream_socket() {
    UniqueFd made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!made)
        return fail_errno("socket");
    return made;
}

Result<std::string> random_name() {
    uint64_t numbers[2] = {};
    if (::getrandom(numbers, sizeof numbers, 0) != static_cast<ssize_t>(sizeof numbers))
        return fail_errno("getrandom");
    return fmt::format("berth-ranks-{:016x}{:016x}", numbers[0], numbers[1]);
}

// The first words of a new connection must come soon: others wait behind it.
Result<Note> first_note(int socket) {
    pollfd waiting{socket, POLLIN, 0};
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(kHelloWait).count();
    if (::poll(&waiting, 1, static_cast<int>(wait)) <= 0)
        return fail(ErrorCode::kDeadlineExceeded, "a rank connected and said nothing");
    return receive_note(socket);
}

Status check_same_user(int socket) {
    BERTH_ASSIGN(const PeerCredentials peer, peer_credentials(socket));
    if (peer.uid == ::geteuid() || peer.uid == 0)
        return {};
    return fail(ErrorCode::kPermissionDenied,
                fmt::format("user {} (pid {}) is not this rank's user {}", peer.uid, peer.pid,
                            ::geteuid()));
}

} // namespace

// Nothing: that was none of this instance's ranks, the next may be.
Result<std::unique_ptr<RankLinks::Peer>> RankLinks::admit(int listener,
                                                          std::vector<std::string>& devices) {
    auto peer = std::make_unique<Peer>();
    peer->socket = UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer->socket)
        return fail_errno("accept");
    if (!check_same_user(peer->socket.get()))
        return nullptr;
    const auto hello = first_note(peer->socket.get());
    if (!hello || hello->kind != NoteKind::kHello || hello->words.size() != 2)
        return nullptr;
    const size_t line = hello->text.rfind('\n');
    const std::string alike = hello->text.substr(0, line);
    peer->rank = hello->words[0];
    std::string wrong;
    if (hello->words[1] != self_.ranks || peer->rank == 0 || peer->rank >= self_.ranks)
        wrong = fmt::format("it says that it is rank {} of {}, rank 0 is one of {}", peer->rank,
                            hello->words[1], self_.ranks);
    else if (std::ranges::any_of(peers_, [&](const auto& one) { return one->rank == peer->rank; }))
        wrong = fmt::format("there are two processes of rank {}", peer->rank);
    else if (alike != self_.alike)
        wrong = fmt::format("all ranks must be started alike: rank {} has {}; rank 0 has {}",
                            peer->rank, alike, self_.alike);
    if (!wrong.empty()) {
        (void)send_note(peer->socket.get(), {NoteKind::kLost, {peer->rank}, wrong});
        return fail(ErrorCode::kMismatch, wrong, "RanksDiffer");
    }
    devices.push_back(hello->text.substr(line + 1));
    return peer;
}

Status RankLinks::gather(RankStore& store, Nanoseconds timeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    BERTH_ASSIGN(const std::string name, random_name());
    BERTH_ASSIGN(const Address address, abstract_address(name));
    BERTH_ASSIGN(const UniqueFd listener, stream_socket());
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) !=
            0 ||
        ::listen(listener.get(), kBacklog) != 0)
        return fail_errno("listening for the other ranks");
    BERTH_TRY(store.set(kAddressName, name));
    std::vector<std::string> devices{self_.device};
    Status met;
    while (met && peers_.size() + 1 < self_.ranks) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            until - std::chrono::steady_clock::now());
        pollfd waiting{listener.get(), POLLIN, 0};
        if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) {
            std::set<uint32_t> missing;
            for (uint32_t rank = 1; rank < self_.ranks; ++rank)
                missing.insert(rank);
            for (const auto& peer : peers_)
                missing.erase(peer->rank);
            met = fail(ErrorCode::kDeadlineExceeded,
                       fmt::format("after {:.0f} s of {} ranks these have not come: {}; start all "
                                   "ranks of an instance together, with one rendezvous",
                                   std::chrono::duration<double>(timeout).count(), self_.ranks,
                                   fmt::join(missing, ", ")),
                       "RanksMissing");
            break;
        }
        auto peer = admit(listener.get(), devices);
        if (!peer)
            met = fail(peer.error());
        else if (*peer)
            peers_.push_back(std::move(*peer));
    }
    if (!met) {
        say_failed(met.error().message);
        return met;
    }
    shares_device_ = std::set<std::string>(devices.begin(), devices.end()).size() < devices.size();
    send_to_others({NoteKind::kBegin, {shares_device_ ? 1U : 0U}, {}});
    return {};
}

Status RankLinks::join(RankStore& store, Nanoseconds timeout) {
    BERTH_ASSIGN(const std::string name, store.get(kAddressName, timeout));
    BERTH_ASSIGN(const Address address, abstract_address(name));
    auto peer = std::make_unique<Peer>();
    BERTH_ASSIGN(peer->socket, stream_socket());
    if (::connect(peer->socket.get(), reinterpret_cast<const sockaddr*>(&address.name),
                  address.bytes) != 0)
        return fail(ErrorCode::kUnavailable,
                    fmt::format("rank 0 does not listen where the rendezvous says ({}): it has "
                                "ended, or the rendezvous is of an earlier start: give a new one",
                                std::strerror(errno)),
                    "RankLost");
    BERTH_TRY(check_same_user(peer->socket.get()));
    const std::string text = self_.alike + "\n" + self_.device;
    BERTH_TRY(send_note(peer->socket.get(), {NoteKind::kHello, {self_.rank, self_.ranks}, text}));
    pollfd waiting{peer->socket.get(), POLLIN, 0};
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
    if (::poll(&waiting, 1, static_cast<int>(wait)) <= 0)
        return fail(ErrorCode::kDeadlineExceeded, "rank 0 waits for other ranks that do not come",
                    "RanksMissing");
    auto begin = receive_note(peer->socket.get());
    if (!begin)
        return fail(ErrorCode::kUnavailable, "rank 0 has ended before all ranks were there",
                    "RankLost");
    if (begin->kind != NoteKind::kBegin || begin->words.empty())
        return fail(ErrorCode::kMismatch, begin->text, "RanksDiffer");
    shares_device_ = begin->words[0] != 0;
    peers_.push_back(std::move(peer));
    return {};
}

} // namespace berth::engine
