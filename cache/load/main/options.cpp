// SPDX-License-Identifier: Apache-2.0
#include "cache/load/main/options.h"

#include <CLI/CLI.hpp>

namespace berth {

ParsedOptions parse_options(int argc, char** argv) {
    LoaderOptions options;
    CLI::App app("Loads a checkpoint once into one sealed segment of a device.\n"
                 "berthd starts it with --control-fd; by hand it checks a checkpoint (--check) or "
                 "tries a load (--verify).",
                 "berth-loader");
    app.add_option("--model", options.model,
                   "Folder with config.json and safetensors, or one safetensors file")
        ->required();
    app.add_option("--device", options.device, "host-N, cuda, or a GPU's UUID")
        ->capture_default_str();
    app.add_option("--environment", options.environment_json,
                   "What the set is made for, as JSON; default: the device's own");
    app.add_option("--control-fd", options.control_fd,
                   "Socket on which berthd listens: plan, progress and the sealed set go there")
        ->check(CLI::Range(3, 1 << 20));
    app.add_option("--dtype", options.request.recipe.dtype, "Element type in memory")
        ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))
        ->capture_default_str();
    app.add_option("--threads", options.threads, "Reader threads; 0: as many as are of use")
        ->check(CLI::Range(0, 256))
        ->capture_default_str();
    app.add_flag("--check", options.check, "Validate, print the plan, load nothing");
    app.add_flag("--verify", options.verify, "After the load compute every checksum anew");
    app.add_flag("--json", options.json, "Print as JSON");
    app.add_flag("--allow-trailing", options.request.checkpoint.safetensors.allow_trailing,
                 "Accept bytes behind a file's last tensor");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        int code = app.exit(error);
        return {std::nullopt, code == 0 ? 0 : 2};
    }
    options.request.path = options.model;
    return {std::move(options), 0};
}

} // namespace berth
