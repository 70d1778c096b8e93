// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/admin/admin_api.h"

// For the files of AdminApi's changes only.
namespace berth {

template <typename Event>
boost::asio::awaitable<http::Response> AdminApi::begin(std::string request_id, Event event) {
    if (auto earlier = co_await begun_earlier(request_id))
        co_return std::move(*earlier);
    bool known = false;
    node::OperationId id = parts_.context.operations.begin(request_id, known);
    if (known)
        co_return operation_reply(id, 200);
    if (auto can = recordable(); !can) {
        parts_.context.operations.forget(id);
        co_return http::error_response(can.error());
    }
    event.operation = id;
    parts_.context.post(std::move(event));
    co_await recorded();
    co_return operation_reply(id, 202);
}

} // namespace berth
