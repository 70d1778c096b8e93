// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/admin_client.h"

#include "base/http/client.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <unistd.h>

namespace berth::cli {

namespace {

std::string endpoint_of(std::string given) {
    if (given.starts_with("unix:") || given.starts_with("http://"))
        return given;
    return "unix:" + given;
}

} // namespace

AdminClient::AdminClient(std::string endpoint) : endpoint_(endpoint_of(std::move(endpoint))) {}

// A connection that could not be made, or broke, is told apart from what the daemon refused.
tl::unexpected<Error> AdminClient::explain(Error error) const {
    if (error.code == ErrorCode::kPermissionDenied) {
        error.message += "; ask as root, as berthd's own user, or as a member of its group";
        return fail(std::move(error));
    }
    if (error.code != ErrorCode::kUnavailable && error.code != ErrorCode::kDeadlineExceeded)
        return fail(std::move(error));
    error.reason = kUnreachable;
    error.message = fmt::format("no berthd answers at {} ({}); start one with 'berthd --config "
                                "FILE', or name its admin socket with --admin or BERTH_ADMIN",
                                endpoint_, error.message);
    return fail(std::move(error));
}

Result<json::value> AdminClient::get(const std::string& target,
                                     std::chrono::milliseconds timeout) const {
    http::CallOptions options;
    options.timeout = timeout;
    auto response = http::request(endpoint_, "GET", target, {}, options);
    if (!response)
        return explain(std::move(response).error());
    return http::json_from(*response);
}

Result<json::value> AdminClient::post(const std::string& target, const json::object& body,
                                      std::chrono::milliseconds timeout) const {
    http::CallOptions options;
    options.timeout = timeout;
    options.headers.set("Content-Type", "application/json");
    auto response = http::request(endpoint_, "POST", target, json::serialize(body), options);
    if (!response)
        return explain(std::move(response).error());
    return http::json_from(*response);
}

Result<std::string> AdminClient::put_text(const std::string& target, std::string_view body) const {
    http::CallOptions options;
    options.headers.set("Content-Type", "application/yaml");
    auto response = http::request(endpoint_, "PUT", target, body, options);
    if (!response)
        return explain(std::move(response).error());
    if (response->status >= 400)
        return fail(http::error_from(*response));
    return std::move(response->body);
}

Status AdminClient::lines(const std::string& target, std::chrono::milliseconds silence_max,
                          const std::function<bool(std::string_view)>& on_line) const {
    http::CallOptions options;
    options.timeout = silence_max;
    auto response = http::request_lines(endpoint_, "GET", target, {}, on_line, options);
    if (!response)
        return explain(std::move(response).error());
    if (response->status >= 400)
        return fail(http::error_from(*response));
    return {};
}

std::string default_admin_socket() {
    const char* runtime = std::getenv("XDG_RUNTIME_DIR");
    if (::geteuid() == 0 || runtime == nullptr || *runtime == '\0')
        return "/run/berth/admin.sock";
    return std::string(runtime) + "/berth/admin.sock";
}

} // namespace berth::cli
