// SPDX-License-Identifier: Apache-2.0
#include "tests/policies/live_scenarios.h"

#include "policies/difference.h"
#include "policies/shape.h"
#include "policies/yaml.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace berth::policies::test {

namespace {

std::string text_of(const std::filesystem::path& file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

std::vector<std::string> split(const std::string& text, const std::string& by) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t end = 0; (end = text.find(by, begin)) != std::string::npos; begin = end + by.size())
        parts.push_back(text.substr(begin, end - begin));
    parts.push_back(text.substr(begin));
    return parts;
}

std::string with_line_ends(std::string text) {
    for (size_t at = 0; (at = text.find("\\n", at)) != std::string::npos;)
        text.replace(at, 2, "\n");
    return text;
}

// "[batch]" -> "[]", and of a trigger nothing.
std::string without_names(const std::string& field) {
    std::string out;
    bool inside = false;
    for (char c : field) {
        inside = c == '[' || (inside && c != ']');
        if (!inside || c == '[')
            out += c;
    }
    return out;
}

// Of "{class: batch, on: Schedule, cron: ...}": name -> value, without the braces.
std::set<std::string> fields_of(const std::string& element) {
    std::set<std::string> fields;
    if (element.size() > 2)
        for (const std::string& one : split(element.substr(1, element.size() - 2), ", "))
            fields.insert(one);
    return fields;
}

// One scenario while it is read.
class Reader {
  public:
    Reader(std::filesystem::path from, std::filesystem::path folder, LiveScenario& into)
        : from_(std::move(from)), folder_(std::move(folder)), into_(into) {}

    void line(int number, const std::string& line) {
        if (!into_.wrong.empty())
            return;
        if (take(line, "base ")) {
            for (const std::string& file : split(rest_, " "))
                text_ += (text_.empty() ? "" : "---\n") + text_of(from_ / file);
        } else if (take(line, "with ")) {
            replace(number);
        } else if (line == "when begun") {
            apply(number);
        } else if (take(line, "when changed ")) {
            const std::string before = text_;
            replace(number);
            apply(number);
            note_difference(number, before);
        } else if (take(line, "when added ")) {
            text_ += "---\n" + text_of(from_ / rest_);
            apply(number);
        } else if (take(line, "when removed ")) {
            text_ = without_instance(text_, rest_);
            apply(number);
        } else {
            into_.played.lines.emplace_back(number, line);
        }
    }

  private:
    bool take(const std::string& line, const std::string& head) {
        if (!line.starts_with(head))
            return false;
        rest_ = line.substr(head.size());
        return true;
    }
    void refuse(int number, const std::string& why) {
        into_.wrong = into_.played.where + ", line " + std::to_string(number) + ": " + why;
    }
    void replace(int number) {
        for (const std::string& one : split(rest_, " ; ")) {
            const std::vector<std::string> sides = split(one, " -> ");
            if (sides.size() != 2)
                return refuse(number, "expected OLD -> NEW");
            const std::string old = with_line_ends(sides[0]);
            const size_t at = text_.find(old);
            if (at == std::string::npos || text_.find(old, at + 1) != std::string::npos)
                return refuse(number, "'" + old + "' does not stand there exactly once");
            text_.replace(at, old.size(), with_line_ends(sides[1]));
        }
    }
    void apply(int number) {
        const std::string name = into_.played.where.substr(0, into_.played.where.find('.')) + "-" +
                                 std::to_string(number) + ".yaml";
        std::ofstream(folder_ / name) << text_;
        into_.played.lines.emplace_back(number, "when applied " + name);
    }
    void note_difference(int number, const std::string& before) {
        const Result<Documents> old = parse_documents(before, "before");
        const Result<Documents> fresh = parse_documents(text_, "after");
        if (!old || !fresh)
            return refuse(number, (old ? fresh : old).error().message);
        into_.changed.merge(changed_fields(*old, *fresh));
    }

    std::filesystem::path from_, folder_;
    LiveScenario& into_;
    std::string text_, rest_;
};

void collect(const Shape& shape, const std::string& path, std::set<std::string>& out) {
    const auto inside = [&](const FieldShape& field, const std::string& own) {
        bool has = false;
        for (const Form& form : field.forms) {
            if (!form.inner)
                continue;
            collect(*form.inner, own + (form.kind == Form::Kind::kMaps ? "[]" : ""), out);
            has = true;
        }
        return has;
    };
    for (const FieldShape& field : shape.fields)
        if (const std::string own = path + "." + field.name; !inside(field, own))
            out.insert(own);
    for (const Shape& one : shape.cases)
        collect(one, path, out);
}

} // namespace

std::set<std::string> live_fields() {
    std::set<std::string> out;
    for (const Shape& kind : document_shape().cases)
        if (kind.word != "Node") // read when berthd starts
            collect(kind, kind.word, out);
    return out;
}

std::set<std::string> changed_fields(const Documents& before, const Documents& after) {
    std::set<std::string> out;
    std::set<std::string> came, went; // of triggers, which have no names
    for (const FieldChange& one : difference_between(before, after).changes) {
        const std::string kind = one.document.substr(0, one.document.find('/'));
        if (one.field == "spec.triggers") {
            came.merge(fields_of(one.after));
            went.merge(fields_of(one.before));
            continue;
        }
        out.insert(kind + "." + without_names(one.field));
    }
    std::vector<std::string> differing;
    std::ranges::set_symmetric_difference(came, went, std::back_inserter(differing));
    for (const std::string& one : differing)
        out.insert("ColocationPolicy.spec.triggers[]." + one.substr(0, one.find(':')));
    return out;
}

std::vector<LiveScenario> read_live_scenarios(const std::filesystem::path& from,
                                              const std::filesystem::path& folder) {
    std::vector<LiveScenario> all;
    for (const node::test::Scenario& raw : node::test::read_scenarios(from.string())) {
        LiveScenario one;
        one.played.name = raw.name;
        one.played.where = raw.where;
        one.field = raw.name.substr(0, raw.name.find(": "));
        Reader reader(from, folder, one);
        for (const auto& [number, line] : raw.lines)
            reader.line(number, line);
        all.push_back(std::move(one));
    }
    return all;
}

} // namespace berth::policies::test
