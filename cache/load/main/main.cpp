// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "cache/load/main/loader.h"

#include <cstdio>

int main(int argc, char** argv) {
    if (berth::Status started = berth::log::start("berth-loader"); !started) {
        std::fprintf(stderr, "berth-loader: %s\n", started.error().message.c_str());
        return 2;
    }
    berth::ParsedOptions parsed = berth::parse_options(argc, argv);
    if (!parsed.options)
        return parsed.exit_code;
    return berth::run_loader(std::move(*parsed.options));
}
