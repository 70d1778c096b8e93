// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/fingerprint.h"

#include "base/hash.h"
#include "cache/checkpoint/index.h"
#include "cache/weights/canonical_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

namespace berth {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSeen = "seen";

json::object side_file_json(const SideFile& file) {
    return {{"size", file.bytes}, {"mtimeNs", file.mtime_ns}};
}

Result<json::object> parse_document(std::string_view document) {
    BERTH_ASSIGN(json::value parsed, json::parse(document, "the fingerprint"));
    if (!parsed.is_object())
        return fail(ErrorCode::kCorrupt, fmt::format("the fingerprint is {}, expected an object",
                                                     json::kind_name(parsed)));
    return parsed.get_object();
}

std::string hash_of(json::object document) {
    document.erase(kSeen);
    return sha256_hex(canonical_json(document));
}

// The method and what it was told, of the checkpoint's own quantisation or of ours.
json::object quantisation_json(const Checkpoint& checkpoint, const WeightRecipe& recipe) {
    json::object ours;
    if (recipe.quantisation == kBlockFp8)
        ours = {{"element", "F8_E4M3"}, {"block", {128, 128}}, {"factor", "F32, amax / 448"}};
    const std::string& stored = checkpoint.config.quantisation_config_json;
    return {{"method", recipe.quantisation},
            {"configHash", ours.empty() ? "" : sha256_hex(canonical_json(ours))},
            {"storedMethod", checkpoint.config.quantisation_method},
            {"storedConfigHash", stored.empty() ? "" : sha256_hex(stored)}};
}

// Whether a field that differs in text may differ.
bool accepts(const std::string& field, const std::string& cached, const std::string& wanted) {
    if (!field.starts_with("environment."))
        return false;
    if (field == "environment.torchVersion" && (cached == "any" || wanted == "any"))
        return true;
    return wanted.empty();
}

using Fields = std::map<std::string, std::string>;

std::string value_of(const Fields& fields, const std::string& name) {
    auto found = fields.find(name);
    return found == fields.end() ? std::string() : found->second;
}

// Compares what was seen with what stat() says now.
class DiskComparison {
  public:
    explicit DiskComparison(std::string folder) : folder_(std::move(folder)) {}

    void expect(const std::string& name, const json::object* recorded) {
        auto now = stat_side_file(folder_ + "/" + name);
        if (recorded == nullptr) {
            if (now)
                add(name, "", "a new file");
            return;
        }
        if (!now) {
            differences_.push_back({name, "a file", now.error().message, true});
            return;
        }
        json::object found = side_file_json(*now);
        for (const char* field : {"size", "mtimeNs"}) {
            const json::value* value = recorded->if_contains(field);
            std::string before = value != nullptr ? json::serialize(*value) : std::string();
            std::string after = json::serialize(found.at(field));
            if (before != after)
                add(fmt::format("{}.{}", name, field), before, after);
        }
    }
    void add(std::string field, std::string cached, std::string wanted) {
        differences_.push_back({std::move(field), std::move(cached), std::move(wanted)});
    }
    std::vector<FieldDifference> take() { return std::move(differences_); }

  private:
    std::string folder_;
    std::vector<FieldDifference> differences_;
};

const json::object* object_at(const json::object& from, std::string_view name) {
    const json::value* found = from.if_contains({name.data(), name.size()});
    return found != nullptr ? found->if_object() : nullptr;
}

} // namespace

Fingerprint fingerprint_of(const Checkpoint& checkpoint, const WeightRecipe& recipe,
                           const WeightEnvironment& environment) {
    json::array files;
    for (const CheckpointFile& file : checkpoint.files)
        files.push_back({{"name", file.name},
                         {"size", file.bytes},
                         {"mtimeNs", file.mtime_ns},
                         {"headerHash", file.header_hash}});
    json::object seen = {{"folder", checkpoint.folder},
                         {"config", side_file_json(checkpoint.config_file)}};
    if (!checkpoint.index_file.hash.empty())
        seen["index"] = side_file_json(checkpoint.index_file);
    auto text = [](std::string_view from) {
        return json::value(boost::json::string_view(from.data(), from.size()));
    };
    json::object document = {
        {"producer",
         {{"name", text(kProducerName)}, {"version", text(kProducerVersion)}, {"recipe", "copy"}}},
        {"checkpoint",
         {{"configHash", checkpoint.config_file.hash},
          {"indexHash", checkpoint.index_file.hash},
          {"files", std::move(files)}}},
        {"slicing",
         {{"tp", recipe.parallelism.tensor},
          {"pp", recipe.parallelism.pipeline},
          {"dp", recipe.parallelism.data},
          {"ep", recipe.parallelism.expert},
          {"rank", recipe.rank}}},
        {"quantisation", quantisation_json(checkpoint, recipe)},
        {"dtype", recipe.dtype},
        {"layout", text(kLayoutTag)},
        {"environment",
         {{"deviceKind", environment.device_kind},
          {"computeCapability", environment.compute_capability},
          {"cudaVersion", environment.cuda_version},
          {"torchVersion", environment.torch_version}}}};
    Fingerprint fingerprint;
    fingerprint.sha256 = hash_of(document);
    document[kSeen] = std::move(seen);
    fingerprint.document = canonical_json(document);
    return fingerprint;
}

Result<Fingerprint> describe(const std::string& path, const WeightRecipe& recipe,
                             const WeightEnvironment& environment) {
    BERTH_ASSIGN(Checkpoint checkpoint, open_checkpoint(path));
    return fingerprint_of(checkpoint, recipe, environment);
}

Result<std::string> hash_of_document(std::string_view document) {
    BERTH_ASSIGN(json::object parsed, parse_document(document));
    return hash_of(std::move(parsed));
}

Result<std::string> hash_of_model(std::string_view document) {
    BERTH_ASSIGN(json::object parsed, parse_document(document));
    for (const char* field : {"slicing", "layout", "environment"})
        parsed.erase(field);
    return hash_of(std::move(parsed));
}

Result<std::vector<FieldDifference>> compare(std::string_view cached, std::string_view wanted) {
    BERTH_ASSIGN(json::object have, parse_document(cached));
    BERTH_ASSIGN(json::object want, parse_document(wanted));
    have.erase(kSeen);
    want.erase(kSeen);
    Fields have_fields = flatten(have);
    Fields want_fields = flatten(want);
    Fields all = have_fields;
    all.insert(want_fields.begin(), want_fields.end());
    std::vector<FieldDifference> differences;
    for (const auto& [field, ignored] : all) {
        std::string before = value_of(have_fields, field);
        std::string after = value_of(want_fields, field);
        if (before != after && !accepts(field, before, after))
            differences.push_back({field, before, after});
    }
    return differences;
}

std::string difference_table(const std::vector<FieldDifference>& differences) {
    auto shown = [](const std::string& text) { return text.empty() ? std::string("-") : text; };
    size_t field_width = std::string_view("field").size();
    size_t cached_width = std::string_view("cached").size();
    for (const FieldDifference& difference : differences) {
        field_width = std::max(field_width, difference.field.size());
        cached_width = std::max(cached_width, shown(difference.cached).size());
    }
    std::string table =
        fmt::format("{:<{}}  {:<{}}  wanted\n", "field", field_width, "cached", cached_width);
    for (const FieldDifference& difference : differences)
        table += fmt::format("{:<{}}  {:<{}}  {}\n", difference.field, field_width,
                             shown(difference.cached), cached_width, shown(difference.wanted));
    return table;
}

Result<std::vector<FieldDifference>> changes_on_disk(std::string_view document,
                                                     const std::string& path) {
    BERTH_ASSIGN(json::object parsed, parse_document(document));
    const json::object* seen = object_at(parsed, kSeen);
    const json::object* checkpoint = object_at(parsed, "checkpoint");
    const json::value* files = checkpoint != nullptr ? checkpoint->if_contains("files") : nullptr;
    if (seen == nullptr || files == nullptr || !files->is_array())
        return fail(ErrorCode::kCorrupt, "the fingerprint does not say which files it was made of");
    std::error_code error;
    bool is_folder = fs::is_directory(path, error);
    fs::path file(path);
    std::string folder = is_folder                ? path
                         : file.has_parent_path() ? file.parent_path().string()
                                                  : std::string(".");
    DiskComparison comparison(folder);
    std::vector<std::string> names;
    for (const json::value& entry : files->get_array()) {
        const json::object* recorded = entry.if_object();
        const json::value* name = recorded != nullptr ? recorded->if_contains("name") : nullptr;
        if (name == nullptr || !name->is_string())
            return fail(ErrorCode::kCorrupt, "the fingerprint has a file without a name");
        names.emplace_back(std::string_view(name->get_string()));
        comparison.expect(names.back(), recorded);
    }
    comparison.expect("config.json", object_at(*seen, "config"));
    const json::object* index = object_at(*seen, "index");
    if (is_folder)
        comparison.expect(std::string(kIndexName), index);
    else if (index != nullptr || names != std::vector{file.filename().string()})
        comparison.add("files", fmt::format("{}", fmt::join(names, ", ")),
                       file.filename().string());
    // In a folder without an index a file of the usual name goes before any other.
    std::string usual = "model.safetensors";
    if (is_folder && index == nullptr && names != std::vector{usual})
        comparison.expect(usual, nullptr);
    return comparison.take();
}

bool still_same(std::string_view document, const std::string& path) {
    auto changes = changes_on_disk(document, path);
    return changes && changes->empty();
}

} // namespace berth
