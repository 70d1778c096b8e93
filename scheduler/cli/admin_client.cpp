// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/admin_client.h"

#include "base/unique_fd.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <sys/stat.h>
#include <unistd.h>

namespace berth::cli {

namespace {

// berthd's heartbeat on an idle event stream comes every 15 s.
constexpr std::chrono::seconds kSilenceMax{40};

} // namespace

Error AdminClient::explained(const Error& error) const {
    Error told = error;
    if (error.code == ErrorCode::kInvalidArgument)
        return told;
    told.reason = kNotReachable;
    std::string remedy = "is it running? Start it with 'berthd --config FILE', or name its socket "
                         "with --admin or BERTH_ADMIN";
    if (error.reason == "CertificateRefused" || error.reason == "TlsFailed")
        remedy = "nothing was sent to it";
    else if (error.source == EACCES)
        remedy = "its socket is for root, the node's user and the node's group";
    else if (error.code == ErrorCode::kDeadlineExceeded)
        remedy = "it took the connection and is silent; look at its log";
    told.message = fmt::format("berthd does not answer: {}; {}", error.message, remedy);
    return told;
}

http::CallOptions AdminClient::call_options() const {
    http::CallOptions options;
    options.ca_file = ca_file_;
    if (!token_.empty())
        options.headers.set("Authorization", "Bearer " + token_);
    return options;
}

Result<json::value> AdminClient::get(const std::string& target,
                                     std::chrono::milliseconds timeout) const {
    http::CallOptions options = call_options();
    options.timeout = timeout;
    auto reply = http::request(endpoint_, "GET", target, {}, options);
    if (!reply)
        return fail(explained(reply.error()));
    return http::json_from(*reply);
}

Result<json::value> AdminClient::post(const std::string& target, const json::object& body,
                                      std::chrono::milliseconds timeout) const {
    http::CallOptions options = call_options();
    options.timeout = timeout;
    options.headers.set("Content-Type", "application/json");
    auto reply = http::request(endpoint_, "POST", target, json::serialize(body), options);
    if (!reply)
        return fail(explained(reply.error()));
    return http::json_from(*reply);
}

Result<http::Response> AdminClient::exchange(const std::string& method, const std::string& target,
                                             const std::string& body,
                                             const http::Headers& headers) const {
    http::CallOptions options = call_options();
    for (const auto& [name, text] : headers.fields())
        options.headers.set(name, text);
    auto reply = http::request(endpoint_, method, target, body, options);
    if (!reply)
        return fail(explained(reply.error()));
    if (reply->status >= 400)
        return fail(http::error_from(*reply));
    return std::move(*reply);
}

Status AdminClient::lines(const std::string& target,
                          const std::function<bool(std::string_view)>& on_line) const {
    http::CallOptions options = call_options();
    options.timeout = kSilenceMax;
    auto reply = http::request_lines(endpoint_, "GET", target, {}, on_line, options);
    if (!reply)
        return fail(explained(reply.error()));
    if (reply->status >= 300)
        return fail(http::error_from(*reply));
    return {};
}

std::string AdminClient::socket_path() const {
    return endpoint_.starts_with("unix:") ? endpoint_.substr(5) : "";
}

std::string endpoint_of(const std::string& admin) {
    if (admin.starts_with("unix:") || admin.starts_with("http://") || admin.starts_with("https://"))
        return admin;
    return "unix:" + admin;
}

Result<std::string> token_in(const std::string& file) {
    struct stat found{};
    if (::stat(file.c_str(), &found) != 0)
        return fail_errno(file);
    if ((found.st_mode & 0007U) != 0)
        return fail(ErrorCode::kPermissionDenied,
                    fmt::format("{}: everyone on this machine may use the token in it (mode "
                                "{:04o}): chmod 0600",
                                file, found.st_mode & 07777U),
                    "TokenFileOpen");
    BERTH_ASSIGN(std::string token, read_file(file, 4096));
    while (!token.empty() && token.back() <= ' ')
        token.pop_back();
    if (token.empty() || token.find_first_of(" \t\r\n") != std::string::npos)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: expected one token and nothing else (the node's file of "
                                "hashes is not it)",
                                file));
    return token;
}

std::string default_admin() {
    if (::geteuid() == 0)
        return "/run/berth/admin.sock";
    const char* folder = std::getenv("XDG_RUNTIME_DIR");
    if (folder != nullptr && *folder != '\0')
        return std::string(folder) + "/berth/admin.sock";
    return fmt::format("/run/user/{}/berth/admin.sock", ::geteuid());
}

Result<json::array> items_of(const json::value& reply) {
    if (const auto* object = reply.if_object())
        if (const auto* items = object->if_contains("items"); items != nullptr)
            if (const auto* listed = items->if_array())
                return *listed;
    return fail(ErrorCode::kCorrupt,
                "berthd's reply has no 'items': is it of the same version as this program?");
}

std::string text_at(const json::object& from, std::string_view field) {
    const auto* found = from.if_contains(field);
    if (found == nullptr || !found->is_string())
        return "";
    return std::string(std::string_view(found->get_string()));
}

uint64_t number_at(const json::object& from, std::string_view field) {
    const auto* found = from.if_contains(field);
    if (found == nullptr)
        return 0;
    if (found->is_uint64())
        return found->get_uint64();
    if (found->is_int64() && found->get_int64() > 0)
        return static_cast<uint64_t>(found->get_int64());
    return 0;
}

double real_at(const json::object& from, std::string_view field) {
    const auto* found = from.if_contains(field);
    return found != nullptr && found->is_number() ? found->to_number<double>() : 0;
}

bool flag_at(const json::object& from, std::string_view field) {
    const auto* found = from.if_contains(field);
    return found != nullptr && found->is_bool() && found->get_bool();
}

} // namespace berth::cli
