// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/quantisation.h"

#include "base/unique_fd.h"
#include "cache/checkpoint/fault.h"
#include "cache/checkpoint/strict_json.h"

#include <sys/stat.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace berth {

namespace {

constexpr std::string_view kBlockKey = "fp8";
constexpr size_t kSideFileBytesMax = size_t{4} << 20;

// The whitelist, and the names of what is not on it. A method that is not named here is refused as
// well, by the name that the checkpoint gives it.
constexpr std::array kMethods = {
    QuantisationMethod{"none", "none", true},
    QuantisationMethod{kBlockKey, "block-wise FP8", true}, // with 128x128 blocks, see read_blocks
    QuantisationMethod{"aqlm", "AQLM"},
    QuantisationMethod{"auto_round", "AutoRound"},
    QuantisationMethod{"awq", "AWQ"},
    QuantisationMethod{"awq_marlin", "AWQ in Marlin's layout"},
    QuantisationMethod{"bitblas", "BitBLAS"},
    QuantisationMethod{"bitnet", "BitNet"},
    QuantisationMethod{"bitsandbytes", "bitsandbytes"},
    QuantisationMethod{"compressed_tensors", "compressed-tensors"},
    QuantisationMethod{"deepspeedfp", "DeepSpeed FP"},
    QuantisationMethod{"eetq", "EETQ"},
    QuantisationMethod{"experts_int8", "INT8 experts"},
    QuantisationMethod{"fbgemm_fp8", "FBGEMM FP8"},
    QuantisationMethod{"fouroversix", "Four Over Six"},
    QuantisationMethod{"fp_quant", "FP-Quant"},
    QuantisationMethod{"gguf", "GGUF"},
    QuantisationMethod{"gptq", "GPTQ"},
    QuantisationMethod{"gptq_marlin", "GPTQ in Marlin's layout"},
    QuantisationMethod{"gptq_marlin_24", "sparse GPTQ in Marlin's layout"},
    QuantisationMethod{"higgs", "HIGGS"},
    QuantisationMethod{"hqq", "HQQ"},
    QuantisationMethod{"ipex", "IPEX"},
    QuantisationMethod{"marlin", "Marlin"},
    QuantisationMethod{"metal", "Metal"},
    QuantisationMethod{"modelopt", "ModelOpt"},
    QuantisationMethod{"modelopt_fp4", "ModelOpt NVFP4"},
    QuantisationMethod{"moe_wna16", "WNA16 experts"},
    QuantisationMethod{"mxfp4", "MXFP4"},
    QuantisationMethod{"mxfp8", "MXFP8"},
    QuantisationMethod{"nvfp4", "NVFP4"},
    QuantisationMethod{"petit_nvfp4", "NVFP4 in Petit's layout"},
    QuantisationMethod{"ptpc_fp8", "per-token per-channel FP8"},
    QuantisationMethod{"qoq", "QoQ"},
    QuantisationMethod{"quanto", "Quanto"},
    QuantisationMethod{"quark", "Quark"},
    QuantisationMethod{"sinq", "SINQ"},
    QuantisationMethod{"spqr", "SpQR"},
    QuantisationMethod{"squeezellm", "SqueezeLLM"},
    QuantisationMethod{"torchao", "torchao"},
    QuantisationMethod{"vptq", "VPTQ"},
    QuantisationMethod{"w8a8_fp8", "per-channel FP8"},
    QuantisationMethod{"w8a8_int8", "per-channel INT8"},
};

// A method's own file, and the key whose value (other than null) says that weights are quantised.
struct MethodFile {
    std::string_view file;
    std::string_view object; // the key is within this object; empty: at the top
    std::string_view key;
    std::string_view method;
};
constexpr std::array kMethodFiles = {
    MethodFile{"hf_quant_config.json", "quantization", "quant_algo", "modelopt"},
    MethodFile{"quantize_config.json", "", "bits", "gptq"},
    MethodFile{"quant_config.json", "", "w_bit", "awq"},
};

// Older files name no method, but each has a field that no other writes.
constexpr std::array kTellingFields = {
    std::pair{std::string_view("quant_algo"), std::string_view("modelopt")},
    std::pair{std::string_view("load_in_4bit"), std::string_view("bitsandbytes")},
    std::pair{std::string_view("load_in_8bit"), std::string_view("bitsandbytes")},
    std::pair{std::string_view("config_groups"), std::string_view("compressed-tensors")},
};

std::string key_of(std::string_view method) {
    std::string key(method);
    for (char& letter : key)
        letter = letter == '-'                    ? '_'
                 : letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a')
                                                  : letter;
    return key;
}

const QuantisationMethod* find_method(std::string_view method) {
    std::string key = key_of(method);
    const auto* found = std::find_if(kMethods.begin(), kMethods.end(),
                                     [&](const QuantisationMethod& row) { return row.key == key; });
    return found == kMethods.end() ? nullptr : found;
}

json::value sorted(const json::value& from) {
    if (const json::array* array = from.if_array()) {
        json::array copy;
        for (const json::value& entry : *array)
            copy.push_back(sorted(entry));
        return copy;
    }
    const json::object* object = from.if_object();
    if (object == nullptr)
        return from;
    std::vector<std::string_view> keys;
    for (const auto& [key, ignored] : *object)
        keys.emplace_back(key.data(), key.size());
    std::sort(keys.begin(), keys.end());
    json::object copy;
    for (std::string_view key : keys)
        copy[{key.data(), key.size()}] = sorted(object->at({key.data(), key.size()}));
    return copy;
}

tl::unexpected<Error> refuse(std::string_view shown, std::string_view name,
                             std::string_view method) {
    return fail_fault({"UnsupportedQuantisation", shown, "",
                       fmt::format("the quantisation method {} (quant_method '{}')", name, method),
                       fmt::format("one that works: {}", supported_quantisations()),
                       "use an unquantised or block-wise FP8 checkpoint of this model",
                       ErrorCode::kUnsupported});
}

tl::unexpected<Error> unreadable(std::string_view shown, std::string_view found,
                                 std::string_view expected) {
    return fail_fault({"BadConfig", shown, "",
                       fmt::format("field 'quantization_config': {}", found), expected,
                       "correct the field, or download the file again"});
}

// The string of a field; empty where it is absent or null.
Result<std::string> text_of(const json::object& from, std::string_view name,
                            std::string_view shown) {
    const json::value* found = from.if_contains({name.data(), name.size()});
    if (found == nullptr || found->is_null())
        return std::string();
    if (!found->is_string())
        return unreadable(shown, fmt::format("'{}' as {}", name, json::kind_name(*found)),
                          "a string");
    return std::string(std::string_view(found->get_string()));
}

Status read_not_converted(const json::object& from, std::string_view shown,
                          BlockQuantisation& blocks) {
    for (std::string_view name : {"modules_to_not_convert", "ignored_layers"}) {
        const json::value* found = from.if_contains({name.data(), name.size()});
        if (found == nullptr || found->is_null())
            continue;
        const json::array* list = found->if_array();
        if (list == nullptr)
            return unreadable(shown, fmt::format("'{}' as {}", name, json::kind_name(*found)),
                              "a list of modules' names");
        for (const json::value& entry : *list) {
            std::string_view module;
            if (entry.is_string())
                module = entry.get_string();
            // A pattern that is read in another way than its writer meant would let through a
            // matrix without its factors.
            if (module.empty() || module.find_first_of("*^$[]()|+?\\:") != std::string_view::npos)
                return unreadable(shown, fmt::format("'{}' with {}", name, json::serialize(entry)),
                                  "modules' plain names, no patterns");
            blocks.not_converted.emplace(module);
        }
    }
    return {};
}

// `quant_method` fp8 is block-wise only if it says so; which blocks, elements and scales work is
// said here alone.
Result<BlockQuantisation> read_blocks(const json::object& from, std::string_view method,
                                      std::string_view shown) {
    const json::value* size = from.if_contains("weight_block_size");
    if (size == nullptr || size->is_null())
        return refuse(shown, "per-tensor FP8", method);
    const json::array* pair = size->if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_int64() || !(*pair)[1].is_int64())
        return unreadable(shown, fmt::format("weight_block_size {}", json::serialize(*size)),
                          "two whole numbers");
    if ((*pair)[0].get_int64() != kQuantBlock || (*pair)[1].get_int64() != kQuantBlock)
        return refuse(
            shown,
            fmt::format("FP8 in blocks of {}x{}", (*pair)[0].get_int64(), (*pair)[1].get_int64()),
            method);
    BERTH_ASSIGN(std::string format, text_of(from, "fmt", shown));
    if (!format.empty() && key_of(format) != "e4m3" && key_of(format) != "float8_e4m3fn")
        return refuse(shown, fmt::format("block-wise FP8 of format '{}'", format), method);
    BERTH_ASSIGN(std::string scheme, text_of(from, "activation_scheme", shown));
    if (!scheme.empty() && key_of(scheme) != "dynamic")
        return refuse(shown, fmt::format("block-wise FP8 with {} activation scales", scheme),
                      method);
    BERTH_ASSIGN(std::string experts, text_of(from, "expert_dtype", shown));
    if (!experts.empty() && key_of(experts) != "fp8")
        return refuse(shown, fmt::format("block-wise FP8 with {} experts", experts), method);
    const json::value* more = from.if_contains("modules_to_convert");
    if (more != nullptr && !more->is_null() && !(more->is_array() && more->get_array().empty()))
        return refuse(shown, "block-wise FP8 of more than linear projections", method);
    BlockQuantisation blocks;
    BERTH_TRY(read_not_converted(from, shown, blocks));
    return blocks;
}

Status check_method_file(const std::string& folder, const MethodFile& row) {
    std::string path = folder + "/" + std::string(row.file);
    struct stat facts{};
    if (::stat(path.c_str(), &facts) != 0)
        return {};
    BERTH_ASSIGN(std::string text, read_file(path, kSideFileBytesMax));
    auto parsed = parse_strict(text, row.file);
    const json::object* object = parsed ? parsed->if_object() : nullptr;
    if (object == nullptr)
        return fail_fault({"BadConfig", row.file, "",
                           parsed ? json::kind_name(*parsed) : "what is no JSON",
                           "an object that describes the quantisation",
                           "download the file again, or remove it if it is another model's"});
    if (!row.object.empty()) {
        const json::value* inner = object->if_contains({row.object.data(), row.object.size()});
        object = inner != nullptr ? inner->if_object() : nullptr;
    }
    const json::value* said =
        object != nullptr ? object->if_contains({row.key.data(), row.key.size()}) : nullptr;
    if (said == nullptr || said->is_null())
        return {};
    std::string method = fmt::format("{} {}", row.key, json::serialize(*said));
    return fail_fault(
        {"UnsupportedQuantisation", row.file, "",
         fmt::format("the quantisation method {} ({})", find_method(row.method)->name, method),
         fmt::format("one that works: {}", supported_quantisations()),
         "use an unquantised or block-wise FP8 checkpoint of this model", ErrorCode::kUnsupported});
}

} // namespace

bool BlockQuantisation::converts(std::string_view module) const {
    if (not_converted.empty())
        return true;
    if (not_converted.contains(module))
        return false;
    for (size_t dot = module.find('.'); dot != std::string_view::npos;
         dot = module.find('.', dot + 1))
        if (not_converted.contains(module.substr(0, dot)) ||
            not_converted.contains(module.substr(dot + 1)))
            return false;
    return true;
}

std::vector<uint64_t> BlockQuantisation::scale_shape(uint64_t rows, uint64_t columns) const {
    return {(rows + block_rows - 1) / block_rows, (columns + block_columns - 1) / block_columns};
}

bool BlockQuantisation::is_scale_dtype(DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kBF16;
}

std::span<const QuantisationMethod> quantisation_methods() {
    return kMethods;
}

std::string supported_quantisations() {
    std::string names;
    for (const QuantisationMethod& row : kMethods)
        if (row.is_supported)
            names += (names.empty() ? "" : "; ") + std::string(row.name);
    return names + fmt::format(" (quant_method '{}', E4M3, weight_block_size [{}, {}])", kBlockKey,
                               kQuantBlock, kQuantBlock);
}

Result<Quantisation> parse_quantisation(std::string_view text, std::string_view shown) {
    BERTH_ASSIGN(json::value parsed, parse_strict(text, shown));
    const json::object* object = parsed.if_object();
    if (object == nullptr)
        return unreadable(shown, json::serialize(parsed),
                          "an object with the string 'quant_method'");
    Quantisation found;
    BERTH_ASSIGN(found.method, text_of(*object, "quant_method", shown));
    for (const auto& [field, method] : kTellingFields)
        if (found.method.empty() && object->contains({field.data(), field.size()}))
            found.method = method;
    if (found.method.empty())
        return unreadable(shown, json::serialize(parsed),
                          "an object with the string 'quant_method'");
    const QuantisationMethod* method = find_method(found.method);
    if (method == nullptr || !method->is_supported) {
        std::string name(method != nullptr ? method->name : "that Berth does not know");
        if (const json::value* algorithm = object->if_contains("quant_algo"))
            name += " " + json::serialize(*algorithm);
        return refuse(shown, name, found.method);
    }
    if (method->key == kBlockKey) {
        BERTH_ASSIGN(found.blocks, read_blocks(*object, found.method, shown));
        found.config_json = json::serialize(sorted(parsed));
    } else {
        found.method.clear();
    }
    return found;
}

Status check_quantisation_files(const std::string& folder) {
    for (const MethodFile& row : kMethodFiles)
        BERTH_TRY(check_method_file(folder, row));
    return {};
}

} // namespace berth
