// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "scheduler/cli/admin_client.h"

#include <chrono>
#include <map>
#include <string>

namespace berth::cli::bench {

// A service (an instance with `engine.listen`) and the standbys behind it, as berthd shows them.
// Blocks; one thread.
class Service {
  public:
    // One that ends within 2 s of its start or of answering is suspected of its requests, so each
    // must have been what it is for longer.
    static constexpr std::chrono::milliseconds kSteady{2500};

    // `name` is the service or one of its standbys. FailedPrecondition (NotAService) where the
    // instance has no socket that outlives it.
    static Result<Service> find(const AdminClient& client, const std::string& name);

    const std::string& name() const { return name_; }
    size_t standbys() const { return standbys_; }

    // Who answers, another one than the process `not_pid`, once it and one standby (where there is
    // any) have been there for kSteady, with the same grant: one that has taken over grows.
    Result<json::object> whole(int not_pid);

  private:
    Service(const AdminClient& client, std::string name)
        : client_(&client), name_(std::move(name)) {}
    Result<json::array> members() const;
    bool is_steady(const json::object& member);

    const AdminClient* client_;
    std::string name_;
    size_t standbys_ = 0;
    // When each process was first seen as what it is: by its pid, substate and grant.
    std::map<std::string, std::chrono::steady_clock::time_point> seen_;
};

} // namespace berth::cli::bench
