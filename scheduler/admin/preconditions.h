// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/http.h"

#include <deque>
#include <set>
#include <string>
#include <string_view>

// What a caller may say of a change of documents beside the change itself: against which state it
// is meant, whether it is a rehearsal, and by which id it is known when it is sent again.
namespace berth {

// "*", or one of the tags in the list (If-Match, If-None-Match).
bool is_matched(std::string_view wanted, const std::string& tag);
// `tag`: of what is there now; empty: nothing is. `what` names it ("the policy"). Else ETagMismatch
// or AlreadyExists, to be answered by 412.
Status preconditions(const http::Request& request, const std::string& what, const std::string& tag);
// 412 for those of preconditions(), else as http::error_response.
http::Response change_refused(const Error& error);

std::string query_of(const http::Request& request, const std::string& name,
                     const std::string& fallback);
bool is_dry(const http::Request& request);
// ?requestId=; "": none. InvalidArgument where it is too long.
Result<std::string> request_id_of(const http::Request& request);

// The ids of changes that were made already, of late: a repetition changes nothing. One thread.
class DoneRequests {
  public:
    static constexpr size_t kMax = 500;
    static constexpr size_t kIdBytesMax = 128;

    // Of that method and path.
    bool knows(const http::Request& request, const std::string& id) const;
    void keep(const http::Request& request, const std::string& id);

  private:
    static std::string key_of(const http::Request& request, const std::string& id);
    std::set<std::string> known_;
    std::deque<std::string> order_;
};

} // namespace berth
