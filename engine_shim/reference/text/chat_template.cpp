// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/chat_template.h"

#include "base/json.h"
#include "base/unique_fd.h"
#include "engine_shim/reference/text/template_outline.h"

#include <fmt/format.h>

#include <ctime>

namespace berth::text {
namespace {

constexpr std::string_view kKnowledge = "Cutting Knowledge Date: December 2023\nToday Date: ";

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

std::string strip(std::string_view text, std::string_view characters, bool left, bool right) {
    if (left)
        text.remove_prefix(std::min(text.find_first_not_of(characters), text.size()));
    if (right)
        text = text.substr(0, text.find_last_not_of(characters) + 1);
    return std::string(text);
}

// Python's strip(): ASCII white space, the separators that Python counts, and Unicode's spaces.
std::string trim(std::string_view text) {
    static constexpr std::string_view kAscii = "\t\n\v\f\r\x1c\x1d\x1e\x1f ";
    static constexpr std::string_view kOthers[] = {
        "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
        "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
        "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
        "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
    for (bool changed = true; changed && !text.empty();) {
        changed = false;
        while (!text.empty() && kAscii.find(text.front()) != std::string_view::npos)
            text.remove_prefix(1);
        while (!text.empty() && kAscii.find(text.back()) != std::string_view::npos)
            text.remove_suffix(1);
        for (std::string_view space : kOthers) {
            if (text.starts_with(space)) {
                text.remove_prefix(space.size());
                changed = true;
            }
            if (text.ends_with(space)) {
                text.remove_suffix(space.size());
                changed = true;
            }
        }
    }
    return std::string(text);
}

std::string today() {
    std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    char buffer[32];
    size_t bytes = std::strftime(buffer, sizeof buffer, "%d %b %Y", &parts);
    return std::string(buffer, bytes);
}

std::string shown(std::string_view text) {
    std::string out = json::serialize(json::value(boost::json::string(text.data(), text.size())));
    return out.size() <= 120 ? out : out.substr(0, 117) + "...";
}

// The text of a token in tokenizer_config.json: a string, or an object with its content.
std::string token_text(const json::object& config, boost::json::string_view field) {
    const json::value* found = config.if_contains(field);
    if (found != nullptr && found->is_object())
        found = found->get_object().if_contains("content");
    if (found == nullptr || !found->is_string())
        return {};
    return {found->get_string().data(), found->get_string().size()};
}

// The template within tokenizer_config.json: a string, or the one named "default" of a list.
std::string template_text(const json::object& config) {
    const json::value* found = config.if_contains("chat_template");
    if (found != nullptr && found->is_array()) {
        for (const json::value& entry : found->get_array()) {
            const json::object* named = entry.if_object();
            if (named != nullptr && token_text(*named, "name") == "default")
                return token_text(*named, "template");
        }
    }
    return token_text(config, "chat_template");
}

} // namespace

// Explains each output of a template in the terms of one family.
class ChatRecogniser {
  public:
    ChatRecogniser(const TemplateOutline& outline, std::string_view bos)
        : outline_(outline), bos_(bos) {}

    Result<ChatTemplate> run() {
        bool is_llama = false;
        bool is_chatml = false;
        for (const TemplateOutline::Output& output : outline_.outputs) {
            is_llama |= contains(output.text, "<|start_header_id|>");
            is_chatml |= contains(output.text, "<|im_start|>");
        }
        if (is_llama == is_chatml)
            return fail(ErrorCode::kUnsupported, "it is neither ChatML nor Llama 3");
        template_.family_ =
            is_llama ? ChatTemplate::Family::kLlama3 : ChatTemplate::Family::kChatMl;
        for (const TemplateOutline::Output& output : outline_.outputs) {
            if (!(is_llama ? explain_llama(output) : explain_chatml(output)))
                return fail(ErrorCode::kUnsupported,
                            fmt::format("it looks like {}, but also writes {}", template_.family(),
                                        shown(output.text)));
        }
        bool is_whole = is_llama ? writes_message_ && writes_prompt_ &&
                                       writes_system_ == writes_dates_ &&
                                       writes_system_ == writes_system_end_
                                 : writes_prompt_ && (writes_message_ || writes_open_message_) &&
                                       writes_open_message_ == writes_close_;
        if (!is_whole)
            return fail(ErrorCode::kUnsupported,
                        fmt::format("it looks like {}, but does not write whole messages",
                                    template_.family()));
        template_.always_prompts_ = !contains(outline_.tags, "add_generation_prompt");
        return std::move(template_);
    }

  private:
    bool explain_bos(const std::string& text) {
        if (text != "{bos}")
            return false;
        template_.bos_ = bos_;
        return true;
    }

    bool explain_chatml(const TemplateOutline::Output& output) {
        const std::string& text = output.text;
        static const std::string kOpen = "<|im_start|>system\n";
        static const std::string kClose = "<|im_end|>\n";
        if (text == "<|im_start|>{role}\n{content}<|im_end|>\n")
            return writes_message_ = true;
        if (text == "<|im_start|>{role}\n{content}")
            return writes_open_message_ = true;
        if (text == "<|im_start|>assistant\n")
            return writes_prompt_ = true;
        if (text == kClose)
            return writes_close_ = true;
        if (text == kOpen + "{first}" + kClose || (!output.in_loop && explain_bos(text)))
            return true;
        if (text == "<think>\n\n</think>\n\n")
            return contains(output.conditions, "enable_thinking");
        if (text == "<|im_start|>{role}\n<think>\n{reasoning_content.strip('\\n')}\n</think>\n\n"
                    "{content.lstrip('\\n')}") {
            template_.family_ = ChatTemplate::Family::kChatMlThinking;
            return contains(outline_.tags, "last_query_index") &&
                   contains(output.conditions, "loop.last");
        }
        bool is_default = text.size() > kOpen.size() + kClose.size() && text.starts_with(kOpen) &&
                          text.ends_with(kClose) && contains(output.conditions, "system") &&
                          !template_.has_default_system_;
        if (!is_default)
            return false;
        template_.default_system_ =
            text.substr(kOpen.size(), text.size() - kOpen.size() - kClose.size());
        template_.has_default_system_ = true;
        return !contains(template_.default_system_, "<|") &&
               !contains(template_.default_system_, "{");
    }

    bool explain_llama(const TemplateOutline::Output& output) {
        const std::string& text = output.text;
        static const std::string kEnd = "<|end_header_id|>\n\n";
        if (text == "<|start_header_id|>{role}" + kEnd + "{content|trim}<|eot_id|>")
            return writes_message_ = true;
        if (text == "<|start_header_id|>assistant" + kEnd)
            return writes_prompt_ = true;
        if (text == "{content}")
            return outline_.variables.contains("content");
        if (text == "{bos}{content}") {
            template_.bos_ = bos_;
            return true;
        }
        if (text == "<|start_header_id|>system" + kEnd)
            return writes_system_ = true;
        if (text == std::string(kKnowledge) + "{date_string}\n\n")
            return writes_dates_ = explain_date();
        if (text == "{system_message}<|eot_id|>")
            return writes_system_end_ = true;
        return !output.in_loop && explain_bos(text);
    }

    // The date is a constant of the template, or the day's where the renderer offers strftime_now.
    bool explain_date() {
        template_.has_dates_ = true;
        auto date = outline_.variables.find("date_string");
        if (date == outline_.variables.end())
            return false;
        if (contains(outline_.tags, "strftime_now"))
            return contains(outline_.tags, R"(strftime_now("%d %b %Y"))");
        template_.fixed_date_ = date->second;
        return !contains(date->second, "{");
    }

    const TemplateOutline& outline_;
    std::string bos_;
    ChatTemplate template_;
    bool writes_message_ = false;
    bool writes_open_message_ = false;
    bool writes_close_ = false;
    bool writes_prompt_ = false;
    bool writes_system_ = false;
    bool writes_dates_ = false;
    bool writes_system_end_ = false;
};

Result<ChatTemplate> ChatTemplate::recognise(std::string_view jinja, std::string_view bos_token) {
    std::string what = fmt::format("the chat template (it begins with {}) is not supported",
                                   shown(jinja.substr(0, 60)));
    Result<TemplateOutline> outline = outline_template(jinja);
    if (!outline)
        return fail_in(what, std::move(outline).error());
    Result<ChatTemplate> recognised = ChatRecogniser(*outline, bos_token).run();
    if (!recognised)
        return fail_in(what, std::move(recognised).error());
    recognised->set_today(today);
    return recognised;
}

Result<ChatTemplate> ChatTemplate::load(const std::string& folder) {
    json::value config = json::object();
    if (Result<std::string> text = read_file(folder + "/tokenizer_config.json")) {
        BERTH_ASSIGN(config, json::parse(*text, folder + "/tokenizer_config.json"));
    }
    if (!config.is_object())
        return fail(ErrorCode::kInvalidArgument,
                    folder + "/tokenizer_config.json: expected an object");
    Result<std::string> jinja = read_file(folder + "/chat_template.jinja");
    std::string text = jinja ? *jinja : template_text(config.get_object());
    if (text.empty())
        return fail(ErrorCode::kUnsupported,
                    fmt::format("the model has no chat template (neither {0}/chat_template.jinja "
                                "nor 'chat_template' in {0}/tokenizer_config.json)",
                                folder));
    return recognise(text, token_text(config.get_object(), "bos_token"));
}

std::string_view ChatTemplate::family() const {
    switch (family_) {
    case Family::kChatMl:
        return "ChatML";
    case Family::kChatMlThinking:
        return "ChatML with thinking";
    case Family::kLlama3:
        return "Llama 3";
    }
    return "";
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                 bool add_generation_prompt) const {
    bool is_llama = family_ == Family::kLlama3;
    std::string out = is_llama ? render_llama3(messages) : render_chatml(messages);
    if (add_generation_prompt || always_prompts_)
        out += is_llama ? "<|start_header_id|>assistant<|end_header_id|>\n\n"
                        : "<|im_start|>assistant\n";
    return out;
}

std::string ChatTemplate::render_chatml(const std::vector<ChatMessage>& messages) const {
    std::string out = bos_;
    if (has_default_system_ && (messages.empty() || messages[0].role != "system"))
        out += "<|im_start|>system\n" + default_system_ + "<|im_end|>\n";
    // Thinking is shown again only behind the last question.
    size_t last_query = messages.empty() ? 0 : messages.size() - 1;
    for (size_t at = messages.size(); at-- > 0;) {
        bool is_tool = messages[at].content.starts_with("<tool_response>") &&
                       messages[at].content.ends_with("</tool_response>");
        if (messages[at].role == "user" && !is_tool) {
            last_query = at;
            break;
        }
    }
    for (size_t at = 0; at < messages.size(); ++at) {
        std::string content = messages[at].content;
        if (family_ == Family::kChatMlThinking && messages[at].role == "assistant") {
            std::string reasoning;
            if (size_t end = content.rfind("</think>"); end != std::string::npos) {
                reasoning = strip(content.substr(0, content.find("</think>")), "\n", false, true);
                size_t begin = reasoning.rfind("<think>");
                reasoning = begin == std::string::npos ? reasoning : reasoning.substr(begin + 7);
                reasoning = strip(reasoning, "\n", true, false);
                content = strip(content.substr(end + 8), "\n", true, false);
            }
            bool shows = at > last_query && (at + 1 == messages.size() || !reasoning.empty());
            if (shows)
                content = "<think>\n" + strip(reasoning, "\n", true, true) + "\n</think>\n\n" +
                          strip(content, "\n", true, false);
        }
        out += "<|im_start|>" + messages[at].role + "\n" + content + "<|im_end|>\n";
    }
    return out;
}

std::string ChatTemplate::render_llama3(const std::vector<ChatMessage>& messages) const {
    auto message = [](const std::string& role, const std::string& content) {
        return "<|start_header_id|>" + role + "<|end_header_id|>\n\n" + content + "<|eot_id|>";
    };
    std::string out = bos_;
    size_t at = 0;
    if (has_dates_) {
        std::string system(kKnowledge);
        system += (fixed_date_.empty() ? today_() : fixed_date_) + "\n\n";
        if (!messages.empty() && messages[0].role == "system")
            system += trim(messages[at++].content);
        out += message("system", system);
    }
    for (; at < messages.size(); ++at)
        out += message(messages[at].role, trim(messages[at].content));
    return out;
}

} // namespace berth::text
