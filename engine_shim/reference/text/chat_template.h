// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace berth::text {

struct ChatMessage {
    std::string role; // system, user, assistant
    std::string content;
};

// How a model wants a conversation written: one of the two families whose templates are recognised,
// ChatML (with Qwen3's treatment of thinking) and Llama 3. Recognised is what each output statement
// of the Jinja template writes, not the model's name; a template that writes anything else is
// refused, and the error shows what. Tool branches are not taken. Thread-safe after construction.
class ChatTemplate {
  public:
    // From a checkpoint's folder: chat_template.jinja, else tokenizer_config.json.
    static Result<ChatTemplate> load(const std::string& folder);
    static Result<ChatTemplate> recognise(std::string_view jinja, std::string_view bos_token);

    // What the Jinja template gives for these messages; to be encoded without adding special
    // tokens.
    std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;
    // "ChatML", "ChatML with thinking" or "Llama 3".
    std::string_view family() const;

    // For templates that write today's date: "26 Jul 2024". Replaced in tests.
    using Today = std::function<std::string()>;
    void set_today(Today today) { today_ = std::move(today); }

  private:
    enum class Family { kChatMl, kChatMlThinking, kLlama3 };
    friend class ChatRecogniser;

    std::string render_chatml(const std::vector<ChatMessage>& messages) const;
    std::string render_llama3(const std::vector<ChatMessage>& messages) const;

    Family family_ = Family::kChatMl;
    std::string bos_;            // written first; empty for none
    std::string default_system_; // ChatML: when the first message is not the system's
    bool has_default_system_ = false;
    bool has_dates_ = false;      // Llama 3.1 on: knowledge date and today's in the system message
    std::string fixed_date_;      // today's as the template fixes it; empty: ask today_
    bool always_prompts_ = false; // the template does not ask for add_generation_prompt
    Today today_;
};

} // namespace berth::text
