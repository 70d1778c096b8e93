// SPDX-License-Identifier: Apache-2.0
#include "cache/load/main/options.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace berth {

namespace {

Status read_ranks(const std::string& text, LoaderOptions& options) {
    LoadRequest& request = options.request;
    BERTH_TRY(check_parallelism(request.recipe.parallelism));
    if (text == "all") {
        for (uint32_t rank = 0; rank < request.recipe.parallelism.world(); ++rank)
            request.ranks.push_back(rank);
    } else {
        for (size_t at = 0; at <= text.size();) {
            size_t comma = std::min(text.find(',', at), text.size());
            uint32_t rank = 0;
            auto [end, error] = std::from_chars(text.data() + at, text.data() + comma, rank);
            if (error != std::errc() || end != text.data() + comma)
                return fail(ErrorCode::kInvalidArgument,
                            "--ranks '" + text + "': expected 'all' or numbers such as 0,1");
            request.ranks.push_back(rank);
            at = comma + 1;
        }
    }
    request.recipe.rank = request.ranks[0];
    if (options.control_fd >= 0 && request.ranks.size() > 1)
        return fail(ErrorCode::kInvalidArgument,
                    "--ranks: berthd is handed one rank's set at a time");
    if (!options.devices.empty() && options.devices.size() != request.ranks.size())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("--devices names {} devices for {} ranks: give one for each",
                                options.devices.size(), request.ranks.size()));
    if (options.devices.empty())
        options.devices.assign(request.ranks.size(), options.device);
    options.device = options.devices[0];
    return {};
}

// Which of the ways of loading is meant, if any.
Status check_way(const LoaderOptions& options) {
    auto refuse = [](std::string_view why) {
        return fail(ErrorCode::kInvalidArgument, std::string(why));
    };
    if (options.source_fds.empty() != options.source_device.empty())
        return refuse("--source-fds and --source-device go together");
    bool has_source = !options.source_fds.empty();
    bool is_controlled = options.control_fd >= 0;
    if (has_source && (!options.model.empty() || !options.image.empty()))
        return refuse("--source-fds: the set is that source, without --model and --image");
    if (has_source && is_controlled == !options.write_image.empty())
        return refuse("--source-fds: give either --control-fd, to copy the set onto the device, "
                      "or --write-image");
    if (!options.write_image.empty() && (is_controlled || !options.image.empty()))
        return refuse("--write-image goes with a load by hand, or with --source-fds");
    if (!options.image.empty() && options.request.ranks.size() > 1)
        return refuse("--image holds one rank's set: give one rank");
    if (!options.image.empty() && options.check)
        return refuse("--check is for checkpoints: an image is checked by loading it");
    if (options.model.empty() && options.image.empty() && !has_source)
        return refuse("--model is required, or --image, or --source-fds");
    return {};
}

} // namespace

ParsedOptions parse_options(int argc, char** argv) {
    LoaderOptions options;
    CLI::App app("Loads a checkpoint once into one sealed segment of a device.\n"
                 "berthd starts it with --control-fd; by hand it checks a checkpoint (--check) or "
                 "tries a load (--verify). An image of a weight set, or a set that lies on another "
                 "device, are loaded in the same way.",
                 "berth-loader");
    app.add_option("--model", options.model,
                   "Folder with config.json and safetensors, or one safetensors file");
    app.add_option("--device", options.device, "host-N, cuda, or a GPU's UUID")
        ->capture_default_str();
    app.add_option("--devices", options.devices, "One for each rank, separated by commas")
        ->delimiter(',');
    Parallelism& parallelism = options.request.recipe.parallelism;
    app.add_option("--tp", parallelism.tensor, "Ranks that share each layer (tensor parallelism)");
    app.add_option("--pp", parallelism.pipeline, "Pipeline stages");
    app.add_option("--dp", parallelism.data, "Replicas over which experts are spread");
    app.add_option("--ep", parallelism.expert, "Groups of ranks with experts of their own");
    std::string ranks = "0";
    app.add_option("--ranks", ranks, "Which ranks are loaded: 'all', or numbers and commas")
        ->capture_default_str();
    app.add_option("--quantization", options.request.recipe.quantisation,
                   "none, or fp8-block: FP8 by blocks of 128 x 128 on the way in")
        ->check(CLI::IsMember({std::string(kNoQuantisation), std::string(kBlockFp8)}))
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
    std::string reader(to_string(options.request.reader.method));
    app.add_option("--reader", reader,
                   "How bytes come off the disk: auto, io_uring, pread (both direct), buffered")
        ->check(CLI::IsMember({"auto", "io_uring", "pread", "buffered"}))
        ->capture_default_str();
    app.add_option("--image", options.image,
                   "Load this image of a weight set; with --model only if it is what that "
                   "checkpoint would give now");
    app.add_option("--write-image", options.write_image,
                   "Write an image of what was loaded (of each rank: FILE.rankN), or of the "
                   "source");
    app.add_option("--source-fds", options.source_fds,
                   "Descriptors of a sealed set, its manifest first, to copy onto the device")
        ->delimiter(',')
        ->check(CLI::Range(3, 1 << 20));
    app.add_option("--source-device", options.source_device, "The device on which that set lies");
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
    options.request.reader.method = read_method_from(reader).value_or(ReadMethod::kAuto);
    Status read = read_ranks(ranks, options);
    if (read)
        read = check_way(options);
    if (!read) {
        fmt::print(stderr, "berth-loader: {}\n", read.error().message);
        return {std::nullopt, 2};
    }
    return {std::move(options), 0};
}

} // namespace berth
