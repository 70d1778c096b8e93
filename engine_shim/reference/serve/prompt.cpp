// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/prompt.h"

#include "engine_shim/reference/serve/completion_call.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::serve {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

ApiResult<std::vector<int32_t>> encode(std::string_view text, bool add_special_tokens,
                                       std::string_view param, const Model& model) {
    Result<std::vector<int32_t>> ids = model.tokenizer.encode(text, add_special_tokens);
    if (!ids)
        return tl::unexpected<ApiError>(to_api_error(ids.error()));
    if (ids->empty())
        return refuse(std::string(param), fmt::format("'{}' is empty", param));
    return *ids;
}

ApiResult<std::vector<int32_t>> read_ids(const json::array& list, const Model& model) {
    std::vector<int32_t> ids;
    ids.reserve(list.size());
    for (const json::value& item : list) {
        const int64_t* id = item.if_int64();
        if (id == nullptr || *id < 0 || *id >= int64_t{model.engine.vocab_size()})
            return refuse("prompt",
                          fmt::format("'prompt': expected token ids from 0 to {}, found {}",
                                      model.engine.vocab_size() - 1, json::serialize(item)));
        ids.push_back(static_cast<int32_t>(*id));
    }
    return ids;
}

// The text of a message: a string, or a list of text parts.
ApiResult<std::string> message_text(const json::object& message, std::string_view where) {
    const json::value* content = message.if_contains("content");
    if (content == nullptr || content->is_null())
        return refuse(std::string(where), fmt::format("'{}': 'content' is missing", where));
    if (const auto* text = content->if_string())
        return std::string(text->data(), text->size());
    const json::array* parts = content->if_array();
    if (parts == nullptr)
        return refuse(std::string(where),
                      fmt::format("'{}': 'content': expected a string or a list of parts, found {}",
                                  where, json::kind_name(*content)));
    std::string joined;
    for (const json::value& part : *parts) {
        const json::object* fields = part.if_object();
        const json::value* type = fields == nullptr ? nullptr : fields->if_contains("type");
        const json::value* text = fields == nullptr ? nullptr : fields->if_contains("text");
        if (type == nullptr || *type != json::value("text") || text == nullptr ||
            !text->is_string())
            return refuse(
                std::string(where),
                fmt::format("'{}': 'content': only parts of type 'text' are supported", where));
        joined.append(text->get_string().data(), text->get_string().size());
    }
    return joined;
}

ApiResult<text::ChatMessage> read_message(const json::value& from, size_t index) {
    std::string where = fmt::format("messages[{}]", index);
    const json::object* fields = from.if_object();
    const json::value* role = fields == nullptr ? nullptr : fields->if_contains("role");
    if (role == nullptr || !role->is_string())
        return refuse(where, fmt::format("'{}': expected an object with a 'role'", where));
    text::ChatMessage message;
    message.role.assign(role->get_string().data(), role->get_string().size());
    // The newer name of the same.
    if (message.role == "developer")
        message.role = "system";
    if (message.role != "system" && message.role != "user" && message.role != "assistant")
        return refuse(where, fmt::format("'{}': expected the role system, developer, user or "
                                         "assistant, found '{}'",
                                         where, message.role));
    ApiResult<std::string> content = message_text(*fields, where);
    if (!content)
        return tl::unexpected<ApiError>(content.error());
    message.content = std::move(*content);
    return message;
}

} // namespace

ApiResult<Prompts> read_prompts(const json::object& body, const Model& model) {
    const json::value* prompt = body.if_contains("prompt");
    if (prompt == nullptr || prompt->is_null())
        return refuse("prompt", "'prompt' is missing");
    json::array list;
    if (prompt->is_string())
        list.push_back(*prompt);
    else if (!prompt->is_array())
        return refuse("prompt", fmt::format("'prompt': expected a string, token ids or a list of "
                                            "either, found {}",
                                            json::kind_name(*prompt)));
    else if (!prompt->get_array().empty() && prompt->get_array()[0].is_number())
        list.push_back(*prompt);
    else
        list = prompt->get_array();
    if (list.empty() || list.size() > kPromptsMax)
        return refuse("prompt", fmt::format("'prompt': expected 1 to {} prompts, found {}",
                                            kPromptsMax, list.size()));
    Prompts prompts;
    for (const json::value& item : list) {
        ApiResult<std::vector<int32_t>> ids =
            item.is_string()
                ? encode({item.get_string().data(), item.get_string().size()}, true, "prompt",
                         model)
                : read_ids(item.is_array() ? item.get_array() : json::array{item}, model);
        if (!ids)
            return tl::unexpected<ApiError>(ids.error());
        if (ids->empty())
            return refuse("prompt", "'prompt' is empty");
        prompts.push_back(std::move(*ids));
    }
    return prompts;
}

ApiResult<Prompts> read_chat_prompt(const json::object& body, const Model& model) {
    if (!model.chat)
        return refuse("messages", model.chat.error().message, "unsupported_chat_template");
    const json::value* messages = body.if_contains("messages");
    if (messages == nullptr || !messages->is_array() || messages->get_array().empty())
        return refuse("messages", "'messages': expected a list of at least one message");
    std::vector<text::ChatMessage> conversation;
    for (const json::value& item : messages->get_array()) {
        ApiResult<text::ChatMessage> message = read_message(item, conversation.size());
        if (!message)
            return tl::unexpected<ApiError>(message.error());
        conversation.push_back(std::move(*message));
    }
    ApiResult<std::vector<int32_t>> ids =
        encode(model.chat->render(conversation, true), false, "messages", model);
    if (!ids)
        return tl::unexpected<ApiError>(ids.error());
    Prompts prompts;
    prompts.push_back(std::move(*ids));
    return prompts;
}

} // namespace berth::serve
