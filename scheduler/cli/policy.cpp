// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/command.h"

#include "base/http/http.h"
#include "base/unique_fd.h"
#include "policies/yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <unistd.h>

// `berth apply` and `berth validate`.
namespace berth::cli {

namespace {

Result<std::string> read_stdin() {
    std::string all;
    for (;;) {
        char chunk[16384];
        ssize_t got = ::read(STDIN_FILENO, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno("reading stdin");
        if (got == 0)
            return all;
        all.append(chunk, static_cast<size_t>(got));
        if (all.size() > policies::kYamlBytesMax)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("stdin: more than {} bytes of YAML", policies::kYamlBytesMax));
    }
}

// A folder stands for its *.yaml and *.yml files, by name.
Result<std::vector<std::string>> files_of(const std::vector<std::string>& given) {
    std::vector<std::string> files;
    for (const std::string& one : given) {
        std::error_code error;
        if (one == "-" || !std::filesystem::is_directory(one, error)) {
            files.push_back(one);
            continue;
        }
        std::vector<std::string> inside;
        for (const auto& entry : std::filesystem::directory_iterator(one, error))
            if (auto extension = entry.path().extension();
                extension == ".yaml" || extension == ".yml")
                inside.push_back(entry.path().string());
        if (error)
            return fail_errno(one, error.value());
        if (inside.empty())
            return fail(ErrorCode::kNotFound, one + ": no *.yaml or *.yml file in this folder");
        std::sort(inside.begin(), inside.end());
        files.insert(files.end(), inside.begin(), inside.end());
    }
    return files;
}

} // namespace

Status apply(const Context& context, const std::vector<std::string>& given, bool dry_run) {
    BERTH_ASSIGN(std::vector<std::string> files, files_of(given));
    json::array applied;
    for (const std::string& file : files) {
        auto content = file == "-" ? read_stdin() : read_file(file, policies::kYamlBytesMax);
        if (!content)
            return fail(std::move(content).error());
        // Relative paths in a document are relative to its file, which the daemon must know.
        std::error_code ignored;
        std::string name =
            std::filesystem::absolute(file == "-" ? "stdin" : file, ignored).string();
        std::string target = fmt::format("/v1/policy?file={}{}", http::percent_encode(name),
                                         dry_run ? "&dryRun=true" : "");
        BERTH_ASSIGN(std::string effective, context.client.put_text(target, *content));
        applied.emplace_back(file);
        if (context.output.is_table() && dry_run)
            std::fputs(effective.c_str(), stdout);
        else if (context.output.is_table())
            std::fputs(fmt::format("{}: applied\n", file).c_str(), stdout);
    }
    if (!context.output.is_table())
        context.output.print(json::object{{"applied", std::move(applied)}, {"dryRun", dry_run}});
    return {};
}

Status validate(const Output& output, const std::vector<std::string>& files) {
    BERTH_ASSIGN(policies::Documents documents, policies::load_paths(files));
    if (output.is_table()) {
        std::fputs(policies::effective_yaml(documents).c_str(), stdout);
        std::fprintf(stderr, "Valid: %zu models, %zu instances%s%s.\n", documents.models.size(),
                     documents.instances.size(), documents.policy ? ", a policy" : "",
                     documents.node ? ", a node" : "");
        return {};
    }
    json::array models;
    for (const policies::ModelSpec& model : documents.models)
        models.emplace_back(model.name);
    json::array instances;
    for (const policies::InstanceSpec& instance : documents.instances)
        instances.emplace_back(instance.name);
    output.print(json::object{{"valid", true},
                              {"models", std::move(models)},
                              {"instances", std::move(instances)},
                              {"effective", policies::effective_yaml(documents)}});
    return {};
}

} // namespace berth::cli
