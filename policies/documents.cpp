// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"
#include "policies/fields.h"
#include "policies/yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

namespace berth::policies {

namespace {

constexpr std::string_view kApiVersion = "berth/v1";

template <typename Spec>
const Spec* find_named(const std::vector<Spec>& all, std::string_view name) {
    for (const Spec& one : all)
        if (one.name == name)
            return &one;
    return nullptr;
}

tl::unexpected<Error> refuse_origin(const Origin& origin, const std::string& message) {
    return fail(ErrorCode::kInvalidArgument, origin.text() + ": " + message, "InvalidDocument");
}

template <typename Spec>
Status add(std::vector<Spec>& all, Spec one, std::string_view kind) {
    if (const Spec* other = find_named(all, one.name))
        return refuse_origin(one.origin, std::string(kind) + " '" + one.name +
                                             "' is given twice; the other is at " +
                                             other->origin.text());
    all.push_back(std::move(one));
    return {};
}

template <typename Spec>
Status add(std::optional<Spec>& place, Spec one, std::string_view kind) {
    if (place)
        return refuse_origin(one.origin, "a second " + std::string(kind) + " ('" + one.name +
                                             "'); the other is '" + place->name + "' at " +
                                             place->origin.text());
    place = std::move(one);
    return {};
}

// Adds `from`'s documents to `into`; the same one twice is an error.
Status merge(Documents& into, Documents from) {
    if (from.node)
        BERTH_TRY(add(into.node, std::move(*from.node), "Node"));
    if (from.policy)
        BERTH_TRY(add(into.policy, std::move(*from.policy), "ColocationPolicy"));
    for (ModelSpec& one : from.models)
        BERTH_TRY(add(into.models, std::move(one), "Model"));
    for (InstanceSpec& one : from.instances)
        BERTH_TRY(add(into.instances, std::move(one), "Instance"));
    return {};
}

template <typename Spec>
Spec named(Spec spec, const std::string& name, const Origin& origin) {
    spec.name = name;
    spec.origin = origin;
    return spec;
}

// One document; throws YamlFailure.
Documents read_document(Fields& document, const std::string& folder) {
    document.word("apiVersion", {std::string(kApiVersion)}, 0);
    std::string name;
    document.needed_map("metadata", "write metadata: {name: NAME}",
                        [&name](Fields& metadata) { name = metadata.name("name"); });
    Documents out;
    const Origin origin = document.origin();
    const auto read = [&](size_t kind) {
        const auto read_spec = [&](Fields& spec) {
            if (kind == 0)
                out.node = named(read_node(spec, folder), name, origin);
            else if (kind == 1)
                out.policy = named(read_policy(spec), name, origin);
            else if (kind == 2)
                out.models.push_back(named(read_model(spec, folder), name, origin));
            else
                out.instances.push_back(named(read_instance(spec, folder), name, origin));
        };
        if (kind < 2)
            document.map_or_empty("spec", read_spec);
        else
            document.needed_map("spec", "", read_spec);
    };
    document.cases("kind", {"Node", "ColocationPolicy", "Model", "Instance"}, read);
    return out;
}

Documents read_document(const YAML::Node& root, const std::string& file,
                        const std::string& folder) {
    Fields document(root, file, "");
    Documents out = read_document(document, folder);
    document.finish();
    return out;
}

Result<std::vector<std::string>> files_of(const std::string& path) {
    std::error_code failed;
    const auto status = std::filesystem::status(path, failed);
    if (!std::filesystem::exists(status))
        return fail(ErrorCode::kNotFound, path + ": no such file or folder");
    if (!std::filesystem::is_directory(status))
        return std::vector<std::string>{path};
    std::vector<std::string> files;
    for (std::filesystem::directory_iterator it(path, failed), end; !failed && it != end;
         it.increment(failed)) {
        const std::string extension = it->path().extension().string();
        if (extension != ".yaml" && extension != ".yml")
            continue;
        std::error_code gone; // a link that leads nowhere is told when it is read
        if (it->exists(gone) && !it->is_regular_file(gone))
            return fail(ErrorCode::kInvalidArgument, it->path().string() + ": not a file");
        files.push_back(it->path().string());
    }
    if (failed)
        return fail(ErrorCode::kIo, path + ": " + failed.message());
    std::sort(files.begin(), files.end());
    return files;
}

} // namespace

Result<Documents> parse_fragment(std::string_view text, const std::string& file) {
    if (text.size() > kYamlBytesMax)
        return fail(ErrorCode::kInvalidArgument, file + ": " + format_bytes(text.size()) +
                                                     " of YAML; at most " +
                                                     format_bytes(kYamlBytesMax) + " are read");
    try {
        const std::string folder = std::filesystem::path(file).parent_path().string();
        scan_yaml(std::string(text), file);
        Documents all;
        size_t count = 0;
        for (const YAML::Node& root : YAML::LoadAll(std::string(text))) {
            if (!root.IsDefined() || root.IsNull())
                continue;
            if (++count > kDocumentsMax)
                return fail(ErrorCode::kInvalidArgument,
                            file + ": more than " + std::to_string(kDocumentsMax) + " documents");
            BERTH_TRY(merge(all, read_document(root, file, folder)));
        }
        return all;
    } catch (const YamlFailure& failure) {
        return fail(failure.error);
    } catch (const YAML::Exception& broken) {
        Origin at{file, broken.mark.line + 1, broken.mark.column + 1};
        return refuse_origin(broken.mark.is_null() ? Origin{file, 0, 0} : at,
                             "not YAML: " + broken.msg);
    }
}

Result<Documents> parse_documents(std::string_view text, const std::string& file) {
    BERTH_ASSIGN(Documents documents, parse_fragment(text, file));
    BERTH_TRY(check_documents(documents));
    return documents;
}

Documents overlay(Documents base, const Documents& update) {
    if (update.node)
        base.node = update.node;
    if (update.policy)
        base.policy = update.policy;
    auto put = [](auto& all, const auto& one) {
        for (auto& old : all) {
            if (old.name == one.name) {
                old = one;
                return;
            }
        }
        all.push_back(one);
    };
    for (const ModelSpec& one : update.models)
        put(base.models, one);
    for (const InstanceSpec& one : update.instances)
        put(base.instances, one);
    return base;
}

namespace {

// One file to read, and what named it.
struct Wanted {
    std::string file, by;
};

// The files of all paths. One that is named twice, however it is written, is an error.
Result<std::vector<Wanted>> files_of_all(const std::vector<std::string>& paths) {
    std::vector<Wanted> wanted;
    std::map<std::string, std::string> seen; // the file without links and detours -> what named it
    for (const std::string& path : paths) {
        BERTH_ASSIGN(const std::vector<std::string> files, files_of(path));
        for (const std::string& file : files) {
            if (wanted.size() >= kYamlFilesMax)
                return fail(ErrorCode::kInvalidArgument,
                            path + ": more than " + std::to_string(kYamlFilesMax) + " files");
            std::error_code failed;
            const std::string plain = std::filesystem::canonical(file, failed).string();
            const auto [other, fresh] = seen.emplace(failed ? file : plain, path);
            if (!fresh)
                return fail(ErrorCode::kInvalidArgument,
                            fmt::format("{}: would be read twice: it is named by '{}' and by '{}'",
                                        file, other->second, path),
                            "InvalidDocument");
            wanted.push_back({file, path});
        }
    }
    return wanted;
}

Status merge_file(Documents& all, const std::string& file) {
    std::error_code failed;
    const std::string absolute = std::filesystem::absolute(file, failed).string();
    BERTH_ASSIGN(const std::string text, read_file(file, kYamlBytesMax));
    BERTH_ASSIGN(Documents part, parse_fragment(text, failed ? file : absolute));
    return merge(all, std::move(part));
}

} // namespace

Shape document_shape() {
    Shape shape;
    Fields document(shape, "");
    read_document(document, "");
    return shape;
}

Result<Documents> parse_together(const std::vector<SourceText>& texts) {
    Documents all;
    for (const SourceText& one : texts) {
        BERTH_ASSIGN(Documents part, parse_fragment(one.text, one.file));
        BERTH_TRY(merge(all, std::move(part)));
    }
    return all;
}

Result<Documents> load_paths(const std::vector<std::string>& paths) {
    Documents all;
    BERTH_ASSIGN(const std::vector<Wanted> wanted, files_of_all(paths));
    for (const Wanted& one : wanted)
        BERTH_TRY(merge_file(all, one.file));
    BERTH_TRY(check_documents(all));
    return all;
}

Result<Documents> load_node(const std::string& config_file) {
    Documents all;
    BERTH_TRY(merge_file(all, config_file));
    if (!all.node)
        return fail(ErrorCode::kInvalidArgument,
                    config_file + ": no document of kind Node: berthd needs one");
    const Origin at{all.node->origin.file, all.node->policies_mark.line,
                    all.node->policies_mark.column};
    const auto in_node = [&](const std::string& why) {
        return refuse_origin(at, "field 'spec.policies': " + why);
    };
    auto wanted = files_of_all(all.node->policies);
    if (!wanted)
        return in_node(wanted.error().message);
    for (const Wanted& one : *wanted) {
        std::error_code failed;
        if (std::filesystem::equivalent(one.file, config_file, failed))
            return in_node("'" + one.by +
                           "' leads back to this very file; name other files, or a folder that "
                           "it is not in");
        BERTH_TRY(merge_file(all, one.file));
    }
    BERTH_TRY(check_documents(all));
    return all;
}

} // namespace berth::policies
