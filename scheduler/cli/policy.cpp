// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"
#include "policies/yaml.h"
#include "scheduler/cli/commands.h"

#include <fmt/format.h>

#include <filesystem>

namespace berth::cli {

namespace {

// Files that go to berthd in one piece, so that one may name what another holds, and so that all
// of them hold or none.
struct Batch {
    json::array files;
    std::vector<std::string> documents; // "Model/smollm2"
    std::string body() const { return json::serialize(json::object{{"files", files}}); }
};

void add_names(const policies::Documents& documents, std::vector<std::string>& names) {
    if (documents.policy)
        names.emplace_back("ColocationPolicy");
    for (const auto& model : documents.models)
        names.push_back("Model/" + model.name);
    for (const auto& instance : documents.instances)
        names.push_back("Instance/" + instance.name);
}

// Checks what can be checked here, so that nothing is sent of a wrong whole.
Result<Batch> read_batch(const std::vector<std::string>& files) {
    std::vector<policies::SourceText> texts;
    for (const std::string& file : files) {
        std::string path = file == "-" ? "/dev/stdin" : std::filesystem::absolute(file).string();
        BERTH_ASSIGN(std::string text, read_file(path, policies::kYamlBytesMax));
        std::string shown =
            file == "-" ? (std::filesystem::current_path() / "stdin").string() : path;
        texts.push_back({std::move(shown), std::move(text)});
    }
    BERTH_ASSIGN(const policies::Documents documents, policies::parse_together(texts));
    Batch batch;
    add_names(documents, batch.documents);
    for (const policies::SourceText& one : texts)
        batch.files.push_back(json::object{{"file", one.file}, {"text", one.text}});
    return batch;
}

http::Headers headers_for(const std::string& tag) {
    http::Headers headers{{"Content-Type", "application/json"}};
    if (!tag.empty())
        headers.set("If-Match", tag);
    return headers;
}

// The tag that a change is to be made against: the caller's, else that of what holds now.
Result<std::string> tag_for(const Session& session, const PolicyOptions& options) {
    if (!options.if_match.empty())
        return options.if_match.front() == '"' || options.if_match == "*"
                   ? options.if_match
                   : "\"" + options.if_match + "\"";
    BERTH_ASSIGN(const http::Response now, session.client.exchange("GET", "/v1/policy"));
    const std::string* tag = now.headers.find("ETag");
    return tag == nullptr ? std::string() : *tag;
}

std::string or_nothing(std::string text) {
    return text.empty() ? "(none)" : std::move(text);
}

// One document a paragraph, one field a line.
std::string changes_text(const json::array& changes) {
    std::string text, document;
    for (const json::value& value : changes) {
        const json::object& one = value.as_object();
        const std::string of = text_at(one, "document"), field = text_at(one, "field");
        const std::string before = text_at(one, "before"), after = text_at(one, "after");
        if (field.empty()) {
            text += fmt::format("{} {}\n", after.empty() ? "-" : "+", of);
            document.clear();
            continue;
        }
        if (of != document)
            text += "~ " + of + "\n";
        document = of;
        text += fmt::format("    {}: {} -> {}\n", field, or_nothing(before), or_nothing(after));
    }
    return text;
}

std::string names_text(const json::object& reply, const char* field) {
    std::string names;
    if (const json::value* listed = reply.if_contains(field); listed != nullptr)
        if (const json::array* all = listed->if_array())
            for (const json::value& one : *all)
                names += (names.empty() ? "" : ", ") + std::string(one.as_string());
    return names;
}

void print_advice(const std::vector<std::string>& advice) {
    for (const std::string& one : advice)
        print_error("berth: note: " + one + "\n");
}

} // namespace

Status apply(const Session& session, const PolicyOptions& options) {
    Batch batch;
    if (!options.reset) {
        BERTH_ASSIGN(batch, read_batch(options.files));
    }
    BERTH_ASSIGN(const std::string tag, tag_for(session, options));
    BERTH_ASSIGN(
        const http::Response reply,
        session.client.exchange(options.reset ? "DELETE" : "PUT",
                                fmt::format("/v1/policy{}", options.dry_run ? "?dryRun=true" : ""),
                                options.reset ? std::string() : batch.body(), headers_for(tag)));
    if (session.format == Format::kJson) {
        const std::string* fresh = reply.headers.find("ETag");
        json::object shown{{"applied", json::array(batch.documents.begin(), batch.documents.end())},
                           {"dryRun", options.dry_run},
                           {"etag", fresh == nullptr ? std::string() : *fresh},
                           {"effective", reply.body}};
        print(pretty_json(shown));
    } else if (session.format == Format::kYaml || options.dry_run) {
        print(reply.body);
    } else if (options.reset) {
        print("what was applied is forgotten; the node's own files hold\n");
    } else {
        print(fmt::format("applied {}\n", fmt::join(batch.documents, ", ")));
    }
    return {};
}

Status diff(const Session& session, const PolicyOptions& options) {
    BERTH_ASSIGN(const Batch batch, read_batch(options.files));
    BERTH_ASSIGN(const http::Response raw,
                 session.client.exchange("POST", "/v1/policy:diff", batch.body(), headers_for("")));
    BERTH_ASSIGN(const json::value reply, http::json_from(raw));
    if (session.format != Format::kTable) {
        print(session.format == Format::kJson ? pretty_json(reply) : yaml_text(reply));
        return {};
    }
    const json::object* shown = reply.if_object();
    const json::value* changes = shown == nullptr ? nullptr : shown->if_contains("changes");
    if (changes == nullptr || !changes->is_array())
        return fail(ErrorCode::kCorrupt, "berthd's reply has no 'changes': is it of the same "
                                         "version as this program?");
    if (changes->get_array().empty()) {
        print("nothing would change\n");
        return {};
    }
    std::string text = changes_text(changes->get_array());
    for (const auto& [field, title] :
         {std::pair{"added", "would be added"}, std::pair{"removed", "would be removed"},
          std::pair{"restarted", "would start again"}})
        if (const std::string names = names_text(*shown, field); !names.empty())
            text += fmt::format("\n{}: {}", title, names);
    print(fmt::format("{}\nto apply exactly this: berth apply --if-match '{}' ...\n", text,
                      text_at(*shown, "etag")));
    return {};
}

Status show_policy(const Session& session) {
    BERTH_ASSIGN(const http::Response reply, session.client.exchange("GET", "/v1/policy"));
    const std::string* tag = reply.headers.find("ETag");
    if (session.format != Format::kJson) {
        print(reply.body);
        return {};
    }
    json::object shown{{"etag", tag == nullptr ? std::string() : *tag}, {"effective", reply.body}};
    print(pretty_json(shown));
    return {};
}

Status validate(Format format, const std::vector<std::string>& paths) {
    BERTH_ASSIGN(policies::Documents documents, policies::load_paths(paths));
    const std::vector<std::string> advice = policies::advice(documents);
    std::string effective = policies::effective_yaml(documents);
    if (format != Format::kJson) {
        print(effective);
        print_advice(advice);
        return {};
    }
    std::vector<std::string> names;
    add_names(documents, names);
    json::object said{{"valid", true},
                      {"documents", json::array(names.begin(), names.end())},
                      {"advice", json::array(advice.begin(), advice.end())},
                      {"effective", effective}};
    print(pretty_json(said));
    return {};
}

Status print_schema(const std::string& kind) {
    BERTH_ASSIGN(const std::string schema, policies::json_schema(kind));
    BERTH_ASSIGN(const json::value document, json::parse(schema, "the schema"));
    print(pretty_json(document));
    return {};
}

} // namespace berth::cli
