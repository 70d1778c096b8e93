// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/service_sockets.h"

#include "base/http/parking.h"
#include "base/json.h"
#include "base/listen_socket.h"
#include "base/log.h"
#include "base/unix_address.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <set>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr int kUnixMode = 0660;
constexpr int kParkedBytes = 1 << 20; // of buffer; each connection takes less than 1 KiB of it

Result<UniqueFd> open_socket(const std::string& listen) {
    if (listen.starts_with("unix:"))
        return listen_on_unix(listen.substr(5), kUnixMode);
    BERTH_ASSIGN(const policies::ListenAddress address, policies::listen_address(listen));
    return listen_on_tcp(address.host, address.port);
}

Status open_journal(ServiceSockets& sockets) {
    sockets.journal.reset(::memfd_create("berth-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!sockets.journal ||
        ::ftruncate(sockets.journal.get(), static_cast<off_t>(ServiceBook::kJournalBytes)) != 0)
        return fail_errno("the journal of requests");
    int pair[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return fail_errno("a pair of sockets for parked connections");
    sockets.parked_in.reset(pair[0]);
    sockets.parked_out.reset(pair[1]);
    (void)::setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &kParkedBytes, sizeof kParkedBytes);
    return {};
}

Result<http::Parking> parking_of(const ServiceSockets& sockets) {
    BERTH_ASSIGN(UniqueFd in, sockets.parked_in.duplicate());
    BERTH_ASSIGN(UniqueFd out, sockets.parked_out.duplicate());
    return http::Parking(std::move(in), std::move(out));
}

Result<size_t> end_parked(const ServiceSockets& sockets) {
    BERTH_ASSIGN(http::Parking parking, parking_of(sockets));
    return parking.clear();
}

Result<std::set<http::RequestInFlight>> in_flight(const ServiceSockets& sockets) {
    BERTH_ASSIGN(http::Parking parking, parking_of(sockets));
    return http::requests_in_flight(sockets.journal.get(), parking);
}

Result<size_t> end_these(const ServiceSockets& sockets,
                         const std::set<http::RequestInFlight>& requests) {
    BERTH_ASSIGN(http::Parking parking, parking_of(sockets));
    return http::end_requests(sockets.journal.get(), parking, requests);
}

Result<ServiceBook::Shared> sockets_of(std::string listen, std::vector<UniqueFd> fds) {
    if (fds.size() != 1 && fds.size() != 4)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("expected 1 descriptor or 4, found {}", fds.size()));
    auto sockets = std::make_shared<ServiceSockets>();
    sockets->listen = std::move(listen);
    sockets->socket = std::move(fds[0]);
    BERTH_ASSIGN(sockets->endpoint, socket_endpoint(sockets->socket.get()));
    if (fds.size() == 4) {
        sockets->journal = std::move(fds[1]);
        sockets->parked_in = std::move(fds[2]);
        sockets->parked_out = std::move(fds[3]);
    }
    return ServiceBook::Shared(std::move(sockets));
}

// Of a name there is only the port to compare.
bool is_at(const std::string& endpoint, const std::string& listen) {
    if (listen.starts_with("unix:"))
        return endpoint == listen;
    const auto address = policies::listen_address(listen);
    return address && endpoint.ends_with(fmt::format(":{}", address->port));
}

} // namespace

std::vector<std::pair<std::string, int>> ServiceSockets::listen_fds(bool with_journal) const {
    std::vector<std::pair<std::string, int>> all{{"berth-listen", socket.get()}};
    if (with_journal && journal) {
        all.emplace_back("berth-journal", journal.get());
        all.emplace_back("berth-parked-in", parked_in.get());
        all.emplace_back("berth-parked-out", parked_out.get());
    }
    return all;
}

Result<std::vector<UniqueFd>> ServiceSockets::duplicates() const {
    std::vector<UniqueFd> all;
    for (const UniqueFd* one : {&socket, &journal, &parked_in, &parked_out}) {
        if (!*one)
            break;
        BERTH_ASSIGN(UniqueFd copy, one->duplicate());
        all.push_back(std::move(copy));
    }
    return all;
}

std::string ServiceBook::owner_of(const policies::InstanceSpec& spec) {
    return spec.standby_of.empty() ? spec.name : spec.standby_of;
}

Status ServiceBook::adopt(KeptEntry entry) {
    BERTH_ASSIGN(const json::value meta, json::parse(entry.meta, entry.key));
    json::Reader reader(meta, entry.key);
    std::string listen = reader.string("listen");
    BERTH_TRY(reader.allow_unknown().finish());
    BERTH_ASSIGN(services_[entry.key.substr(kKeyPrefix.size())],
                 sockets_of(std::move(listen), std::move(entry.fds)));
    return {};
}

void ServiceBook::follow(
    const policies::Documents& documents,
    const std::function<void(const std::string& instance, const Error&)>& failed) {
    std::set<std::string> wanted;
    for (const policies::InstanceSpec& spec : documents.instances) {
        if (spec.engine.listen.empty())
            continue;
        wanted.insert(owner_of(spec));
        if (auto opened = ensure(spec); !opened && spec.standby_of.empty())
            failed(spec.name, opened.error());
    }
    std::erase_if(services_, [&](const auto& one) {
        if (wanted.contains(one.first))
            return false;
        log::info("service instance={} endpoint={}: closed", one.first, one.second->endpoint);
        if (one.second->listen.starts_with("unix:"))
            (void)remove_socket(one.second->listen.substr(5));
        keep_(std::string(kKeyPrefix) + one.first, {}, {});
        noted_.erase(one.first);
        return true;
    });
}

ServiceBook::Shared ServiceBook::find(const policies::InstanceSpec& spec) const {
    const auto found = services_.find(owner_of(spec));
    return found == services_.end() ? nullptr : found->second;
}

// At another address the journal and what is parked stay: who is answered goes on being answered.
Result<ServiceBook::Shared> ServiceBook::ensure(const policies::InstanceSpec& spec) {
    const Shared known = find(spec);
    const bool journals = spec.engine.journal && spec.engine.driver == policies::DriverKind::kBerth;
    const bool has_socket = known != nullptr && known->listen == spec.engine.listen;
    if (has_socket && (known->journal || !journals))
        return known;
    auto made = std::make_shared<ServiceSockets>();
    made->listen = spec.engine.listen;
    if (has_socket) {
        BERTH_ASSIGN(made->socket, known->socket.duplicate());
    } else {
        BERTH_ASSIGN(made->socket, open_socket(spec.engine.listen));
    }
    BERTH_ASSIGN(made->endpoint, socket_endpoint(made->socket.get()));
    if (known != nullptr && known->journal) {
        BERTH_ASSIGN(made->journal, known->journal.duplicate());
        BERTH_ASSIGN(made->parked_in, known->parked_in.duplicate());
        BERTH_ASSIGN(made->parked_out, known->parked_out.duplicate());
    } else if (journals) {
        BERTH_TRY(open_journal(*made));
    }
    const std::string owner = owner_of(spec);
    log::info("service instance={} endpoint={} journal={}", owner, made->endpoint,
              static_cast<bool>(made->journal));
    services_[owner] = made;
    keep(owner, *made);
    return Shared(made);
}

void ServiceBook::keep(const std::string& owner, const ServiceSockets& sockets) const {
    auto copies = sockets.duplicates();
    if (!copies) {
        log::error("service of {}: {}, going on without the keeper's copy", owner,
                   copies.error().message);
        return;
    }
    const json::object meta{{"listen", sockets.listen}};
    keep_(std::string(kKeyPrefix) + owner, json::serialize(meta), std::move(*copies));
}

void ServiceBook::note_requests(const policies::InstanceSpec& spec) {
    const Shared known = find(spec);
    if (known == nullptr || !known->journal)
        return;
    auto found = in_flight(*known);
    if (found)
        noted_[owner_of(spec)] = std::move(*found);
    else
        noted_.erase(owner_of(spec));
}

void ServiceBook::forget_noted(const policies::InstanceSpec& spec) {
    const Shared known = find(spec);
    const auto noted = noted_.extract(owner_of(spec));
    if (known == nullptr || !known->journal)
        return;
    const Result<size_t> ended =
        noted ? end_these(*known, noted.mapped())
              : Result<size_t>(fail(ErrorCode::kFailedPrecondition, "nobody has noted any"));
    if (!ended) {
        log::warn("which requests of {} are to be forgotten is not known ({}): all are",
                  owner_of(spec), ended.error().message);
        return forget_requests(spec);
    }
    log::warn("requests forgotten instance={} connections={}, others go on", owner_of(spec),
              *ended);
}

void ServiceBook::forget_requests(const policies::InstanceSpec& spec) {
    noted_.erase(owner_of(spec));
    const Shared known = find(spec);
    if (known == nullptr || !known->journal)
        return;
    if (::fallocate(known->journal.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    static_cast<off_t>(kJournalBytes)) != 0)
        log::error("the journal of {} could not be wiped: errno {}", owner_of(spec), errno);
    const Result<size_t> ended = end_parked(*known);
    if (!ended)
        log::error("connections of {} are kept on: {}", owner_of(spec), ended.error().message);
    else if (*ended > 0)
        log::warn("requests forgotten instance={} connections={}", owner_of(spec), *ended);
}

void ServiceBook::take_back(const policies::InstanceSpec& spec, std::vector<UniqueFd> fds) {
    const Shared known = find(spec);
    const bool has_all =
        known != nullptr && (known->journal || fds.size() == 1 || !spec.engine.journal);
    if (has_all || spec.engine.listen.empty())
        return;
    const std::string owner = owner_of(spec);
    auto given = sockets_of(spec.engine.listen, std::move(fds));
    if (given && !is_at((*given)->endpoint, spec.engine.listen))
        given = fail(ErrorCode::kMismatch, fmt::format("it is at {}, and {} is asked for",
                                                       (*given)->endpoint, spec.engine.listen));
    if (!given)
        return log::warn("a socket that {} gives back is not taken: {}", spec.name,
                         given.error().message);
    log::info("service instance={} endpoint={} journal={}: given back by {}", owner,
              (*given)->endpoint, static_cast<bool>((*given)->journal), spec.name);
    services_[owner] = *given;
    keep(owner, **given);
}

void ServiceBook::drop_journal(const policies::InstanceSpec& spec) {
    forget_requests(spec);
    const Shared known = find(spec);
    if (known == nullptr || !known->journal)
        return;
    auto made = std::make_shared<ServiceSockets>();
    made->listen = known->listen;
    made->endpoint = known->endpoint;
    auto socket = known->socket.duplicate();
    if (!socket)
        return log::error("the journal of {} stays: {}", owner_of(spec), socket.error().message);
    made->socket = std::move(*socket);
    services_[owner_of(spec)] = made;
    keep(owner_of(spec), *made);
    log::info("service instance={}: there is no journal any more", owner_of(spec));
}

void ServiceBook::refill() const {
    for (const auto& [owner, sockets] : services_)
        keep(owner, *sockets);
}

} // namespace berth
