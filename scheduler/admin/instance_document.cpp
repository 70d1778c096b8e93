// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/instance_document.h"

#include "base/json.h"

#include <fmt/format.h>

namespace berth {

namespace {

// JSON writes a character beyond the first 65536 as a pair of escapes, which YAML does not know:
// the character itself takes their place. All else keeps its line.
std::string with_pairs_joined(std::string text) {
    constexpr size_t kPair = 12; // "\ud83d\udc0b"
    for (size_t at = 0; (at = text.find('\\', at)) != std::string::npos;) {
        const std::string_view pair = std::string_view(text).substr(at, kPair);
        const bool is_pair = pair.size() == kPair && pair[1] == 'u' &&
                             (pair[2] == 'd' || pair[2] == 'D') && pair.substr(6, 2) == "\\u";
        const auto joined = is_pair ? json::parse("\"" + std::string(pair) + "\"", "a character")
                                    : Result<json::value>(json::value());
        if (joined && joined->is_string())
            text.replace(at, kPair, std::string_view(joined->get_string()));
        at += 2; // past what is escaped, or at least past the character's beginning
    }
    return text;
}

// What is in the documents, for people: "ColocationPolicy, 2 of kind Model".
std::string kinds_of(const policies::Documents& documents) {
    std::string words;
    const auto add = [&words](const std::string& more) {
        words += (words.empty() ? "" : ", ") + more;
    };
    if (documents.node)
        add("a Node");
    if (documents.policy)
        add("a ColocationPolicy");
    if (!documents.models.empty())
        add(fmt::format("{} of kind Model", documents.models.size()));
    if (!documents.instances.empty())
        add(fmt::format("{} of kind Instance", documents.instances.size()));
    return words.empty() ? "none" : words;
}

} // namespace

// The body as the reader of YAML takes it.
Result<std::string> instance_text(const http::Request& request) {
    const std::string* type = request.headers.find("Content-Type");
    if (type == nullptr || !type->starts_with("application/json"))
        return request.body;
    BERTH_TRY(json::parse(request.body, "the request's body"));
    return with_pairs_joined(request.body);
}

Status check_is_instance(const policies::Documents& documents, const std::string& name,
                         const std::string& file) {
    const bool others = documents.node || documents.policy || !documents.models.empty();
    if (others || documents.instances.size() != 1)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: expected one document, of kind Instance; found: {} (several "
                                "together go to PUT /v1/policy, as `berth apply` sends them)",
                                file, kinds_of(documents)),
                    "InvalidDocument");
    const policies::InstanceSpec& found = documents.instances.front();
    if (found.name == name)
        return {};
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: field 'metadata.name': '{}', but the path names '{}'; they must "
                            "be the same",
                            found.origin.text(), found.name, name),
                "NameMismatch");
}

} // namespace berth
