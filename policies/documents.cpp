// SPDX-License-Identifier: Apache-2.0
#include "policies/fields.h"
#include "policies/yaml.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

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

template <typename Spec>
std::vector<std::string> names_of(const std::vector<Spec>& all) {
    std::vector<std::string> names;
    for (const Spec& one : all)
        names.push_back(one.name);
    return names;
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
Documents read_document(const YAML::Node& root, const std::string& file,
                        const std::string& folder) {
    Fields document(root, file, "");
    const std::string version = document.text("apiVersion", std::string(kApiVersion));
    if (version != kApiVersion)
        document.refuse("apiVersion",
                        "expected '" + std::string(kApiVersion) + "', found '" + version + "'");
    const size_t kind = document.word("kind", {"Node", "ColocationPolicy", "Model", "Instance"});
    std::string name;
    if (!document.has("metadata"))
        document.refuse("metadata", "missing; write metadata: {name: NAME}");
    document.map("metadata", [&name](Fields& metadata) {
        name = metadata.text("name");
        if (!is_name(name))
            metadata.refuse("name", "not a name: '" + name +
                                        "'; use 1 to 63 letters, digits, '.', '_' and '-'");
    });
    Documents out;
    if (!document.has("spec") && kind >= 2)
        document.refuse("spec", "missing");
    const Origin origin = document.origin();
    auto read = [&](Fields& spec) {
        if (kind == 0)
            out.node = named(read_node(spec, folder), name, origin);
        else if (kind == 1)
            out.policy = named(read_policy(spec), name, origin);
        else if (kind == 2)
            out.models.push_back(named(read_model(spec, folder), name, origin));
        else
            out.instances.push_back(named(read_instance(spec, folder), name, origin));
    };
    if (document.has("spec")) {
        document.map("spec", read);
    } else {
        static_cast<void>(document.node("spec"));
        const YAML::Node nothing(YAML::NodeType::Map);
        Fields spec(nothing, file, "spec");
        read(spec);
    }
    document.finish();
    return out;
}

Result<std::string> read_text(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in)
        return fail_errno(path);
    std::ostringstream text;
    text << in.rdbuf();
    if (in.bad())
        return fail_errno(path);
    return std::move(text).str();
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
        if (extension == ".yaml" || extension == ".yml")
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

Status check_documents(Documents& documents) {
    const PolicySpec policy = documents.effective_policy();
    for (InstanceSpec& one : documents.instances) {
        if (one.class_name.empty())
            one.class_name = policy.default_class()->name;
        if (policy.find_class(one.class_name) == nullptr)
            return refuse_origin(
                one.origin, "Instance '" + one.name +
                                "': field 'spec.priorityClassName': no class '" + one.class_name +
                                "'" + suggestion(one.class_name, names_of(policy.classes)));
        if (!one.model.empty() && documents.find_model(one.model) == nullptr)
            return refuse_origin(
                one.origin,
                "Instance '" + one.name + "': field 'spec.model': no Model '" + one.model + "'" +
                    (documents.models.empty() ? "; no Model is given"
                                              : suggestion(one.model, names_of(documents.models))));
    }
    for (const TenantSpec& tenant : policy.tenants)
        for (const std::string& model : tenant.may_attach)
            if (documents.find_model(model) == nullptr)
                return refuse_origin(
                    tenant.origin, "tenant '" + tenant.name + "': field 'mayAttach': no Model '" +
                                       model + "'" + suggestion(model, names_of(documents.models)));
    return {};
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

Result<Documents> load_paths(const std::vector<std::string>& paths) {
    Documents all;
    size_t count = 0;
    for (const std::string& path : paths) {
        BERTH_ASSIGN(const std::vector<std::string> files, files_of(path));
        for (const std::string& file : files) {
            if (++count > kYamlFilesMax)
                return fail(ErrorCode::kInvalidArgument,
                            path + ": more than " + std::to_string(kYamlFilesMax) + " files");
            std::error_code failed;
            const std::string absolute = std::filesystem::absolute(file, failed).string();
            BERTH_ASSIGN(const std::string text, read_text(file));
            BERTH_ASSIGN(Documents part, parse_fragment(text, failed ? file : absolute));
            BERTH_TRY(merge(all, std::move(part)));
        }
    }
    BERTH_TRY(check_documents(all));
    return all;
}

} // namespace berth::policies
