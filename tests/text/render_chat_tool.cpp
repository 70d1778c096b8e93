// SPDX-License-Identifier: Apache-2.0
// berth-render-chat FOLDER: reads lines {"messages": [{"role", "content"}...], "prompt": bool} and
// writes for each the conversation as the model's chat template has it, as a JSON string.
#include "base/json.h"
#include "engine_shim/reference/text/chat_template.h"

#include <iostream>
#include <string>

namespace {

using namespace berth;

Result<std::string> render(const text::ChatTemplate& chat, const std::string& line) {
    BERTH_ASSIGN(json::value parsed, json::parse(line, "the line"));
    json::Reader reader(parsed, "the line");
    bool prompt = reader.boolean("prompt", false);
    const json::value* list = reader.any("messages");
    BERTH_TRY(reader.finish());
    if (list == nullptr || !list->is_array())
        return fail(ErrorCode::kInvalidArgument, "the line: 'messages' is no list");
    std::vector<text::ChatMessage> messages;
    for (const json::value& item : list->get_array()) {
        json::Reader fields(item, "a message");
        messages.push_back({fields.string("role"), fields.string("content")});
        BERTH_TRY(fields.finish());
    }
    std::string rendered = chat.render(messages, prompt);
    return json::serialize(json::value(boost::json::string(rendered)));
}

Status run(const std::string& folder) {
    BERTH_ASSIGN(text::ChatTemplate chat, text::ChatTemplate::load(folder));
    std::string line;
    while (std::getline(std::cin, line)) {
        BERTH_ASSIGN(std::string out, render(chat, line));
        std::cout << out << '\n';
    }
    return {};
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: berth-render-chat FOLDER < LINES\n";
        return 2;
    }
    Status status = run(argv[1]);
    if (!status)
        std::cerr << "berth-render-chat: " << status.error().message << '\n';
    return status ? 0 : 1;
}
