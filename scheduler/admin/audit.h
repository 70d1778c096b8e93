// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/node_context.h"
#include "scheduler/admin/access.h"

#include <chrono>
#include <map>
#include <string>

namespace berth {

// Who changed what through the admin interface, or wished to: an event with the reason Audit and a
// log line that begins with "audit", one of each a request. Looks are not audited, refused ones
// are.
//
// Thread rule: the decision thread; the context outlives it. Refusals of one caller are told at
// once, then summed up for kSummedFor: whoever knocks all day fills neither disk nor event log.
class Audit {
  public:
    static constexpr std::chrono::seconds kSummedFor{10};
    static constexpr size_t kCallersMax = 256; // whose refusals are summed up apart

    // What is known before the request is carried out.
    struct Entry {
        std::string object; // "instance/nightly"
        std::string words;
    };

    explicit Audit(NodeContext& context) : context_(context) {}
    Audit(const Audit&) = delete;
    Audit& operator=(const Audit&) = delete;

    Entry begin(const Caller& caller, const http::Request& request) const;
    void done(const Entry& entry, const http::Response& response);
    void broken_off(const Entry& entry);
    void refused(const Caller& caller, const http::Request& request, const Error& why);

  private:
    struct Refusals {
        std::chrono::steady_clock::time_point told;
        uint64_t since = 0;
    };
    void write(bool warning, const Entry& entry, const std::string& outcome);

    NodeContext& context_;
    std::map<std::string, Refusals> refusals_; // by caller and where from
};

} // namespace berth
