// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/engine_calls.h"

#include "scheduler/cli/admin_client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

namespace berth::cli::bench {

namespace {

constexpr std::chrono::seconds kReplyMax{20};

Result<HttpWire::Reply> exchange_within(const Endpoint& to, std::string request,
                                        HttpWire::OnPiece on_piece, std::chrono::seconds limit) {
    boost::asio::io_context io;
    HttpWire wire(io, to);
    Result<HttpWire::Reply> reply =
        fail(ErrorCode::kDeadlineExceeded, fmt::format("{}:{} has not answered in full within {} s",
                                                       to.host, to.port, limit.count()));
    boost::asio::co_spawn(io, wire.exchange(std::move(request), std::move(on_piece)),
                          [&reply](const std::exception_ptr& thrown, Result<HttpWire::Reply> got) {
                              if (!thrown)
                                  reply = std::move(got);
                          });
    io.run_for(limit);
    return reply;
}

} // namespace

Result<json::value> ask_engine(const std::string& endpoint, std::string_view method,
                               std::string_view target, const json::object& body) {
    BERTH_ASSIGN(const Endpoint to, endpoint_from(endpoint));
    const std::string text = body.empty() ? std::string() : json::serialize(body);
    BERTH_ASSIGN(const HttpWire::Reply reply,
                 exchange_within(to,
                                 fmt::format("{} {} HTTP/1.1\r\nHost: engine\r\nContent-Type: "
                                             "application/json\r\nContent-Length: {}\r\n\r\n{}",
                                             method, target, text.size(), text),
                                 {}, kReplyMax));
    if (reply.status != 200)
        return fail(ErrorCode::kUnavailable,
                    fmt::format("{}{}: status {}: {}", endpoint, target, reply.status, reply.body));
    return json::parse(reply.body, "the engine's reply");
}

Result<std::string> served_model(const json::object& instance) {
    const std::string endpoint = text_at(instance, "endpoint");
    if (endpoint.empty())
        return std::string();
    BERTH_ASSIGN(const json::value reply, ask_engine(endpoint, "GET", "/v1/models", {}));
    const auto* list = reply.is_object() ? reply.get_object().if_contains("data") : nullptr;
    if (list == nullptr || !list->is_array() || list->get_array().empty() ||
        !list->get_array().front().is_object())
        return fail(ErrorCode::kCorrupt, endpoint + "/v1/models lists no model");
    return text_at(list->get_array().front().get_object(), "id");
}

Answer stream_answer(const Endpoint& to, std::string request,
                     std::chrono::steady_clock::time_point began, std::chrono::seconds limit,
                     const std::function<void(const Answer&)>& on_progress) {
    Answer answer;
    AnswerReader reader(answer);
    const auto reply = exchange_within(
        to, std::move(request),
        [&](std::string_view piece, HttpWire::Clock::time_point read_at) {
            reader.take(piece, std::chrono::duration<double>(read_at - began).count());
            if (on_progress)
                on_progress(answer);
        },
        limit);
    if (!reply)
        answer.error = reply.error().message;
    else if (reply->status != 200)
        answer.error = fmt::format("status {}: {}", reply->status, reply->body);
    else if (!answer.done && answer.error.empty())
        answer.error = "the answer ended without its last event";
    answer.status = reply ? reply->status : 0;
    answer.done = answer.done && answer.error.empty();
    return answer;
}

} // namespace berth::cli::bench
