// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/api_server.h"

#include "base/http/keeping.h"
#include "base/http/server.h"
#include "base/json.h"
#include "base/log.h"
#include "engine_shim/reference/serve/answer.h"
#include "engine_shim/reference/serve/completion_call.h"
#include "engine_shim/reference/serve/completion_session.h"
#include "engine_shim/reference/serve/health.h"

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include <charconv>

namespace berth::serve {
namespace {

constexpr size_t kBodyBytesMax = size_t{16} << 20;

struct Address {
    std::string host;
    uint16_t port = 0;
};

Result<Address> parse_address(const std::string& address) {
    size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon == std::string::npos ? 0 : colon);
    if (host.starts_with('[') && host.ends_with(']'))
        host = host.substr(1, host.size() - 2);
    unsigned port = 65536;
    const char* begin = address.data() + (colon == std::string::npos ? 0 : colon + 1);
    const char* end = address.data() + address.size();
    auto [stop, error] = std::from_chars(begin, end, port);
    if (host.empty() || error != std::errc() || stop != end || port > 65535)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the address '{}': expected HOST:PORT or unix:PATH", address));
    return Address{host, static_cast<uint16_t>(port)};
}

http::Response refusal(const ApiError& error) {
    http::Response response;
    response.status = error.status;
    response.body = serialize(error);
    return response;
}

} // namespace

class ApiServer::Core : public std::enable_shared_from_this<ApiServer::Core> {
  public:
    Core(boost::asio::io_context& context, engine::EngineApi& engine,
         const text::Tokenizer& tokenizer, Result<text::ChatTemplate> chat)
        : context_(context), model_{engine, tokenizer, std::move(chat)}, health_(context, engine) {}

    void start() {
        http::Router router;
        router.add("GET", "/v1/models",
                   [this](http::Request request) { return models(std::move(request)); });
        router.add("GET", "/v1/models/{model}",
                   [this](http::Request request) { return one_model(std::move(request)); });
        router.add("GET", "/health",
                   [this](http::Request request) { return health(std::move(request)); });
        router.add("GET", "/metrics",
                   [this](http::Request request) { return metrics(std::move(request)); });
        add_completions(router, "/v1/completions", CallKind::kCompletion);
        add_completions(router, "/v1/chat/completions", CallKind::kChat);
        http::ServerLimits limits;
        limits.body_bytes_max = kBodyBytesMax;
        limits.connections_max = 1024;
        server_.emplace(context_, std::move(router), limits);
    }

    Result<std::string> listen(const std::string& address) {
        if (address.starts_with("unix:")) {
            BERTH_TRY(server_->listen_unix(address.substr(5), 0660));
            return address;
        }
        BERTH_ASSIGN(Address parsed, parse_address(address));
        BERTH_ASSIGN(uint16_t port, server_->listen_tcp(parsed.host, parsed.port));
        bool is_v6 = parsed.host.find(':') != std::string::npos;
        return is_v6 ? fmt::format("http://[{}]:{}", parsed.host, port)
                     : fmt::format("http://{}:{}", parsed.host, port);
    }

    Result<std::string> take_over(UniqueFd socket, std::shared_ptr<http::Keeping> keeping) {
        keeping_ = keeping;
        return server_->take_over(std::move(socket), std::move(keeping));
    }
    void leave(http::Leave what) { server_->leave(what); }
    size_t unfinished() const { return server_->unfinished(); }
    size_t answering() const { return server_->answering(); }

    void stop() {
        if (server_)
            server_->stop();
    }

    uint64_t requests_in_flight() const { return metrics_.requests_now; }

  private:
    void add_completions(http::Router& router, const std::string& route, CallKind kind) {
        router.add_stream(
            "POST", route, [this, route, kind](http::Request request, http::StreamPtr stream) {
                return completions(std::move(request), std::move(stream), route, kind);
            });
    }

    // The session raises the gate from here on: the tokenizer and the engine's queue come after.
    boost::asio::awaitable<void> completions(http::Request request, http::StreamPtr stream,
                                             std::string route, CallKind kind) {
        std::shared_ptr<Core> self = shared_from_this();
        CompletionSession session(context_, model_, metrics_, std::move(stream), std::move(route));
        co_await session.run(std::move(request), kind);
    }

    json::object model_object() const {
        json::object model;
        model["id"] = model_.engine.model_name();
        model["object"] = "model";
        model["created"] = started_;
        model["owned_by"] = "berth";
        model["max_model_len"] = model_.engine.max_context();
        return model;
    }

    boost::asio::awaitable<http::Response> models(http::Request) {
        json::object list;
        list["object"] = "list";
        list["data"] = json::array{model_object()};
        co_return http::json_response(list);
    }

    boost::asio::awaitable<http::Response> one_model(http::Request request) {
        if (request.params["model"] == model_.engine.model_name())
            co_return http::json_response(model_object());
        ApiError error{404, fmt::format("the model '{}' does not exist", request.params["model"]),
                       "invalid_request_error", "model", "model_not_found"};
        co_return refusal(error);
    }

    boost::asio::awaitable<http::Response> health(http::Request) {
        Health found = co_await health_.check();
        json::object body;
        body["status"] = found.status;
        if (!found.why.empty())
            body["message"] = found.why;
        co_return http::json_response(body, found.is_good ? 200 : 503);
    }

    boost::asio::awaitable<http::Response> metrics(http::Request) {
        std::string text = metrics_.text(model_.engine.stats());
        if (keeping_)
            text += kept_text(keeping_->counts());
        co_return http::text_response(std::move(text), 200,
                                      "text/plain; version=0.0.4; charset=utf-8");
    }

    boost::asio::io_context& context_;
    Model model_;
    HealthCheck health_;
    ServerMetrics metrics_;
    int64_t started_ = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
    std::shared_ptr<http::Keeping> keeping_; // null: connections end with this process
    std::optional<http::Server> server_;
};

ApiServer::ApiServer(boost::asio::io_context& context, engine::EngineApi& engine,
                     const text::Tokenizer& tokenizer, Result<text::ChatTemplate> chat)
    : core_(std::make_shared<Core>(context, engine, tokenizer, std::move(chat))) {
    core_->start();
}

ApiServer::~ApiServer() {
    stop();
}

Result<std::string> ApiServer::listen(const std::string& address) {
    return core_->listen(address);
}
Result<std::string> ApiServer::take_over(UniqueFd socket, std::shared_ptr<http::Keeping> keeping) {
    return core_->take_over(std::move(socket), std::move(keeping));
}
void ApiServer::leave(http::Leave what) {
    core_->leave(what);
}
size_t ApiServer::unfinished() const {
    return core_->unfinished();
}

size_t ApiServer::answering() const {
    return core_->answering();
}
void ApiServer::stop() {
    core_->stop();
}
uint64_t ApiServer::requests_in_flight() const {
    return core_->requests_in_flight();
}

} // namespace berth::serve
