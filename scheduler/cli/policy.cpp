// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"
#include "policies/yaml.h"
#include "scheduler/cli/commands.h"

#include <fmt/format.h>

#include <filesystem>

namespace berth::cli {

namespace {

// Files of one folder that go to berthd in one piece, so that one may name what another holds.
// Relative paths in them are the folder's.
struct Batch {
    std::string folder;
    std::vector<std::string> files;
    std::string text;
    std::vector<std::string> documents; // "Model/smollm2"
};

void add_names(const policies::Documents& documents, std::vector<std::string>& names) {
    if (documents.policy)
        names.emplace_back("ColocationPolicy");
    for (const auto& model : documents.models)
        names.push_back("Model/" + model.name);
    for (const auto& instance : documents.instances)
        names.push_back("Instance/" + instance.name);
}

// Reads and checks each file alone, so that an error has the file's own line.
Result<std::vector<Batch>> read_batches(const std::vector<std::string>& files) {
    std::vector<Batch> batches;
    for (const std::string& file : files) {
        std::string path = file == "-" ? "/dev/stdin" : std::filesystem::absolute(file).string();
        BERTH_ASSIGN(std::string text, read_file(path, policies::kYamlBytesMax));
        std::string shown =
            file == "-" ? (std::filesystem::current_path() / "stdin").string() : path;
        BERTH_ASSIGN(policies::Documents documents, policies::parse_fragment(text, shown));
        std::string folder = std::filesystem::path(shown).parent_path().string();
        if (batches.empty() || batches.back().folder != folder)
            batches.push_back(Batch{folder, {}, {}, {}});
        Batch& batch = batches.back();
        batch.files.push_back(shown);
        batch.text += (batch.text.empty() ? "" : "\n---\n") + text;
        add_names(documents, batch.documents);
    }
    return batches;
}

} // namespace

Status apply(const Session& session, const std::vector<std::string>& files, bool dry_run) {
    BERTH_ASSIGN(std::vector<Batch> batches, read_batches(files));
    std::string effective;
    std::vector<std::string> applied;
    for (const Batch& batch : batches) {
        BERTH_ASSIGN(effective,
                     session.client.put(fmt::format("/v1/policy?file={}{}",
                                                    http::percent_encode(batch.files.front()),
                                                    dry_run ? "&dryRun=true" : ""),
                                        batch.text));
        applied.insert(applied.end(), batch.documents.begin(), batch.documents.end());
    }
    if (session.format == Format::kJson) {
        json::object shown{{"applied", json::array(applied.begin(), applied.end())},
                           {"dryRun", dry_run},
                           {"effective", effective}};
        print(pretty_json(shown));
    } else if (session.format == Format::kYaml || dry_run) {
        print(effective);
    } else {
        print(fmt::format("applied {}\n", fmt::join(applied, ", ")));
    }
    return {};
}

Status validate(Format format, const std::vector<std::string>& paths) {
    BERTH_ASSIGN(policies::Documents documents, policies::load_paths(paths));
    // What holds without a policy document is shown too: the defaults.
    policies::Documents shown = documents;
    if (!shown.policy)
        shown.policy = shown.effective_policy();
    std::string effective = policies::effective_yaml(shown);
    if (format != Format::kJson) {
        print(effective);
        return {};
    }
    std::vector<std::string> names;
    add_names(documents, names);
    json::object said{{"valid", true},
                      {"documents", json::array(names.begin(), names.end())},
                      {"effective", effective}};
    print(pretty_json(said));
    return {};
}

} // namespace berth::cli
