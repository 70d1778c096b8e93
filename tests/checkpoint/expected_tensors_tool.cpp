// SPDX-License-Identifier: Apache-2.0
// Prints the tensors that a config.json asks for, a line each: name, shape, kind, projection or
// not. With --open: opens a whole checkpoint and prints what is loaded, aliased and ignored.
#include "cache/checkpoint/checkpoint.h"
#include "cache/checkpoint/expected_tensors.h"

#include "base/unique_fd.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>

namespace {

std::string_view kind_name(berth::ElementKind kind) {
    switch (kind) {
    case berth::ElementKind::kBlocks:
        return "blocks";
    case berth::ElementKind::kScales:
        return "scales";
    case berth::ElementKind::kFloat:
        break;
    }
    return "float";
}

berth::Status print_expected(const std::string& path) {
    BERTH_ASSIGN(std::string text, berth::read_file(path));
    BERTH_ASSIGN(berth::ModelConfig config, berth::parse_config(text, "config.json"));
    for (const berth::ExpectedTensor& tensor : berth::expected_tensors(config))
        fmt::print("{}\t{}\t{}\t{}\n", tensor.name, fmt::join(tensor.shape, ","),
                   kind_name(tensor.kind), tensor.is_projection ? "projection" : "-");
    return {};
}

berth::Status print_opened(const std::string& path) {
    BERTH_ASSIGN(berth::Checkpoint checkpoint, berth::open_checkpoint(path));
    for (const berth::CheckpointTensor& tensor : checkpoint.tensors)
        fmt::print("loaded\t{}\t{}\n", tensor.stored.name, tensor.stored.dtype_name);
    for (const berth::CheckpointAlias& alias : checkpoint.aliases)
        fmt::print("alias\t{}\t{}\n", alias.name, alias.of);
    for (const std::string& name : checkpoint.ignored_tensors)
        fmt::print("ignored\t{}\t-\n", name);
    return {};
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app("What a model is made of");
    std::string path;
    bool open = false;
    app.add_option("PATH", path, "config.json, or with --open a checkpoint")->required();
    app.add_flag("--open", open, "Open the checkpoint");
    CLI11_PARSE(app, argc, argv);
    berth::Status done = open ? print_opened(path) : print_expected(path);
    if (done)
        return 0;
    fmt::print(stderr, "{}: {}\n", done.error().reason, done.error().message);
    return 1;
}
