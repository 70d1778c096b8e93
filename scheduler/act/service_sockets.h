// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/in_flight.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "cache/keep/descriptor_store.h"
#include "policies/spec.h"
#include "scheduler/node/types.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace berth {

// What of an instance outlives its engines (engine.listen): the listening socket, in whose queue
// connections wait while nobody answers; and, where the journal is on, a memfd in which the engine
// writes requests down, and a pair of sockets in whose buffer it leaves duplicates of connections.
// They belong to the instance by whose name a pair of active and standby goes.
struct ServiceSockets {
    std::string listen; // as the document says
    std::string endpoint;
    UniqueFd socket;
    UniqueFd journal;               // empty: none
    UniqueFd parked_in, parked_out; // with the journal
    // By the LISTEN_FDS convention, under the names that engines know.
    std::vector<std::pair<std::string, int>> listen_fds(bool with_journal) const;
    Result<std::vector<UniqueFd>> duplicates() const; // of all, in that order
};

// All of them, and their copies with the keeper. Thread rule: the decision thread; names of hosts
// are looked up on it, which for addresses in figures does not block.
class ServiceBook {
  public:
    using Shared = std::shared_ptr<const ServiceSockets>;
    // Keeps an entry, or drops it (no descriptors).
    using Keep = std::function<void(std::string key, std::string meta, std::vector<UniqueFd> fds)>;
    explicit ServiceBook(Keep keep) : keep_(std::move(keep)) {}

    static constexpr std::string_view kKeyPrefix = "service/";
    static constexpr uint64_t kJournalBytes = uint64_t{1} << 30; // of address space: it is sparse

    // From the keeper. Corrupt: it is not one.
    Status adopt(KeptEntry entry);
    // Opens what these documents ask for and is not there, and closes what none asks for. Reports
    // each that cannot be opened; ensure() tries it again.
    void follow(const policies::Documents& documents,
                const std::function<void(const std::string& instance, const Error&)>& failed);
    // Of the instance itself, or of the one that it stands by for.
    Result<Shared> ensure(const policies::InstanceSpec& spec);
    Shared find(const policies::InstanceSpec& spec) const;
    // From an engine that had inherited them, for what is here no more: the keeper's copies may
    // have ended together with an earlier berthd.
    void take_back(const policies::InstanceSpec& spec, std::vector<UniqueFd> fds);
    // Nobody will go on with what is in the journal: its memory is given back, all of it zero, and
    // the connections that are kept end. Only while nobody answers.
    void forget_requests(const policies::InstanceSpec& spec);
    // The same, of those requests alone that were in flight when note_requests() was last called;
    // where that is not known, of all.
    void forget_noted(const policies::InstanceSpec& spec);
    void note_requests(const policies::InstanceSpec& spec);
    // The same, and there is no journal from then on.
    void drop_journal(const policies::InstanceSpec& spec);
    // To a new keeper.
    void refill() const;

  private:
    static std::string owner_of(const policies::InstanceSpec& spec);
    void keep(const std::string& owner, const ServiceSockets& sockets) const;

    Keep keep_;
    std::map<std::string, Shared> services_;                       // by owner
    std::map<std::string, std::set<http::RequestInFlight>> noted_; // by owner
};

} // namespace berth
