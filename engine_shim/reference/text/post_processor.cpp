// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/post_processor.h"

#include "engine_shim/reference/text/component.h"

#include <fmt/format.h>

namespace berth::text {
namespace {

constexpr std::string_view kRole = "post_processor";

// The ids of a special token that a template names.
Result<std::vector<int32_t>> template_ids(const json::value* tokens, std::string_view name) {
    const json::object* table = tokens == nullptr ? nullptr : tokens->if_object();
    const json::value* entry =
        table == nullptr ? nullptr
                         : table->if_contains(boost::json::string_view(name.data(), name.size()));
    const json::object* fields = entry == nullptr ? nullptr : entry->if_object();
    const json::value* ids = fields == nullptr ? nullptr : fields->if_contains("ids");
    std::vector<int32_t> out;
    if (ids != nullptr && ids->is_array()) {
        for (const json::value& id : ids->get_array()) {
            if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > (int64_t{1} << 24))
                return fail(ErrorCode::kInvalidArgument,
                            fmt::format("post_processor 'TemplateProcessing': '{}': bad id {}",
                                        name, json::serialize(id)));
            out.push_back(static_cast<int32_t>(id.get_int64()));
        }
        return out;
    }
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("post_processor 'TemplateProcessing': special token '{}' has no ids", name));
}

// The name in {"SpecialToken": {"id": NAME}} or {"Sequence": {"id": NAME}}; empty if it is not one.
std::string_view item_name(const json::value& item, boost::json::string_view kind) {
    const json::object* object = item.if_object();
    const json::value* inner = object == nullptr ? nullptr : object->if_contains(kind);
    const json::object* fields = inner == nullptr ? nullptr : inner->if_object();
    const json::value* id = fields == nullptr ? nullptr : fields->if_contains("id");
    return id == nullptr || !id->is_string() ? std::string_view() : to_view(id->get_string());
}

Status check_decoder_part(const json::value& from, bool& is_byte_level) {
    BERTH_ASSIGN(std::string type, component_type(from, "decoder"));
    if (type == "ByteLevel") {
        is_byte_level = true;
        return {};
    }
    if (type == "Fuse" && is_byte_level)
        return {};
    if (type != "Sequence")
        return unknown_component("decoder", type, "ByteLevel, Sequence of ByteLevel and Fuse");
    BERTH_ASSIGN(const json::array* list, component_list(from, "decoders", "decoder"));
    for (const json::value& part : *list)
        BERTH_TRY(check_decoder_part(part, is_byte_level));
    return {};
}

} // namespace

Result<PostProcessor> PostProcessor::parse(const json::value& from) {
    PostProcessor parsed;
    if (!from.is_null())
        BERTH_TRY(parsed.add(from));
    return parsed;
}

Status PostProcessor::add(const json::value& from) {
    BERTH_ASSIGN(std::string type, component_type(from, kRole));
    if (type == "ByteLevel")
        return {};
    if (type == "TemplateProcessing")
        return add_template(from);
    if (type != "Sequence")
        return unknown_component(kRole, type, "ByteLevel, TemplateProcessing, Sequence");
    BERTH_ASSIGN(const json::array* list, component_list(from, "processors", kRole));
    for (const json::value& step : *list)
        BERTH_TRY(add(step));
    return {};
}

Status PostProcessor::add_template(const json::value& from) {
    const json::value* single = from.get_object().if_contains("single");
    const json::value* tokens = from.get_object().if_contains("special_tokens");
    if (single == nullptr || !single->is_array())
        return fail(ErrorCode::kInvalidArgument,
                    "post_processor 'TemplateProcessing': field 'single': expected a list");
    bool is_before = true;
    std::vector<int32_t> before;
    for (const json::value& item : single->get_array()) {
        if (std::string_view name = item_name(item, "SpecialToken"); !name.empty()) {
            BERTH_ASSIGN(std::vector<int32_t> ids, template_ids(tokens, name));
            std::vector<int32_t>& side = is_before ? before : after_;
            side.insert(side.end(), ids.begin(), ids.end());
        } else if (item_name(item, "Sequence") == "A" && is_before) {
            is_before = false;
        } else {
            return fail(ErrorCode::kUnsupported,
                        fmt::format("post_processor 'TemplateProcessing': expected special tokens "
                                    "around one sequence A, found {}",
                                    json::serialize(item)));
        }
    }
    if (is_before)
        return fail(ErrorCode::kUnsupported,
                    "post_processor 'TemplateProcessing': the template has no sequence A");
    // A later processor's tokens go around those of an earlier one.
    before_.insert(before_.begin(), before.begin(), before.end());
    return {};
}

std::vector<int32_t> PostProcessor::apply(std::vector<int32_t> ids) const {
    ids.insert(ids.begin(), before_.begin(), before_.end());
    ids.insert(ids.end(), after_.begin(), after_.end());
    return ids;
}

Status check_decoder(const json::value& from) {
    bool is_byte_level = false;
    if (!from.is_null())
        BERTH_TRY(check_decoder_part(from, is_byte_level));
    if (!is_byte_level)
        return fail(ErrorCode::kUnsupported, "decoder: expected ByteLevel, found none");
    return {};
}

} // namespace berth::text
