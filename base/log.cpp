// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <memory>

namespace berth::log {

Status start(const std::string& program, const std::string& level) {
    std::string wanted = level;
    if (wanted.empty()) {
        const char* from_environment = std::getenv("BERTH_LOG");
        wanted = from_environment != nullptr ? from_environment : "info";
    }
    spdlog::level::level_enum parsed = spdlog::level::from_str(wanted);
    if (parsed == spdlog::level::off && wanted != "off")
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("unknown log level '{}': expected trace, debug, info, warn, error "
                                "or off",
                                wanted));
    auto logger = std::make_shared<spdlog::logger>(
        program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %n[%P] %l %v");
    logger->set_level(parsed);
    logger->flush_on(spdlog::level::info);
    spdlog::set_default_logger(std::move(logger));
    return {};
}

} // namespace berth::log
