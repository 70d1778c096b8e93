// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/client.h"

#include <fmt/format.h>

#include <cstdlib>
#include <unistd.h>

namespace berth {

namespace {

std::string variable(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

Result<AttachMode> mode_from(const std::string& name) {
    if (name.empty() || name == "client")
        return AttachMode::kClient;
    if (name == "daemon")
        return AttachMode::kDaemon;
    if (name == "off")
        return AttachMode::kOff;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("BERTH_MODE is '{}'; it may be client (berthd must be there), daemon "
                            "(it is started if it is not) or off (no berthd)",
                            name));
}

Result<std::optional<Fallback>> fallback_from(const std::string& name) {
    if (name.empty())
        return std::nullopt;
    if (name == "disk")
        return Fallback::kDisk;
    if (name == "fail")
        return Fallback::kFail;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("BERTH_FALLBACK is '{}'; it may be disk (load privately where no "
                            "shared set may be used) or fail",
                            name));
}

} // namespace

Result<ClientOptions> ClientOptions::from_environment() {
    ClientOptions options;
    BERTH_ASSIGN(options.mode, mode_from(variable("BERTH_MODE")));
    BERTH_ASSIGN(options.fallback, fallback_from(variable("BERTH_FALLBACK")));
    options.socket = variable("BERTH_SOCKET");
    options.instance = variable("BERTH_INSTANCE");
    options.token = variable("BERTH_TOKEN");
    options.model_path = variable("BERTH_MODEL_PATH");
    options.device = variable("BERTH_DEVICE");
    if (options.instance.empty() != options.token.empty())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("BERTH_{} is set and BERTH_{} is not: an instance has both, a "
                                "guest neither",
                                options.instance.empty() ? "TOKEN" : "INSTANCE",
                                options.instance.empty() ? "INSTANCE" : "TOKEN"));
    return options;
}

Fallback ClientOptions::effective_fallback() const {
    return fallback.value_or(mode == AttachMode::kDaemon ? Fallback::kDisk : Fallback::kFail);
}

std::string default_socket() {
    if (::geteuid() == 0)
        return "/run/berth/berthd.sock";
    std::string folder = variable("XDG_RUNTIME_DIR");
    if (folder.empty())
        folder = fmt::format("/run/user/{}", ::geteuid());
    return folder + "/berth/berthd.sock";
}

} // namespace berth
