// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/template_outline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace berth::text {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view trim(std::string_view text) {
    size_t begin = text.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos)
        return {};
    return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

std::string without_spaces(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (kSpaces.find(c) == std::string_view::npos)
            out += c == '"' ? '\'' : c;
    }
    return out;
}

// Splits at a separator that stands outside quotes and brackets.
std::vector<std::string_view> split_outside(std::string_view text, std::string_view separator) {
    std::vector<std::string_view> parts;
    size_t begin = 0;
    int depth = 0;
    char quote = 0;
    for (size_t at = 0; at < text.size(); ++at) {
        char c = text[at];
        if (quote != 0) {
            if (c == '\\')
                ++at;
            else if (c == quote)
                quote = 0;
        } else if (c == '\'' || c == '"') {
            quote = c;
        } else if (c == '(' || c == '[') {
            ++depth;
        } else if (c == ')' || c == ']') {
            --depth;
        } else if (depth == 0 && text.substr(at, separator.size()) == separator) {
            parts.push_back(trim(text.substr(begin, at - begin)));
            begin = at + separator.size();
            at = begin - 1;
        }
    }
    parts.push_back(trim(text.substr(begin)));
    return parts;
}

std::string unescape(std::string_view literal) {
    std::string out;
    for (size_t at = 0; at < literal.size(); ++at) {
        if (literal[at] != '\\' || at + 1 == literal.size()) {
            out += literal[at];
            continue;
        }
        char c = literal[++at];
        out += c == 'n' ? '\n' : (c == 't' ? '\t' : c);
    }
    return out;
}

bool is_literal(std::string_view term) {
    return term.size() >= 2 && (term[0] == '\'' || term[0] == '"') && term.back() == term[0];
}

// One term of a sum, reduced.
std::string reduce_term(std::string_view term) {
    while (term.size() >= 2 && term.front() == '(' && term.back() == ')')
        term = trim(term.substr(1, term.size() - 2));
    if (is_literal(term))
        return unescape(term.substr(1, term.size() - 2));
    static const std::map<std::string, std::string> kNames = {
        {"message['role']", "role"},
        {"message.role", "role"},
        {"message['content']", "content"},
        {"message.content", "content"},
        {"content", "content"},
        {"messages[0]['content']", "first"},
        {"messages[0].content", "first"},
        {"bos_token", "bos"},
    };
    std::string plain = without_spaces(term);
    std::string filter;
    if (plain.ends_with("|trim")) {
        filter = "|trim";
        plain.resize(plain.size() - filter.size());
    }
    auto known = kNames.find(plain);
    return "{" + (known == kNames.end() ? plain : known->second) + filter + "}";
}

std::string reduce(std::string_view expression) {
    std::string out;
    for (std::string_view term : split_outside(expression, "+"))
        out += reduce_term(term);
    return out;
}

// Whether the condition can hold only when the caller gave tools, or for a tool's messages.
bool needs_tools(std::string_view condition) {
    std::string text(condition);
    for (size_t at = text.find("is not none"); at != std::string::npos;
         at = text.find("is not none"))
        text.erase(at, 11);
    for (std::string_view part : split_outside(text, " and ")) {
        if (contains(part, "tool") && !contains(part, "not ") && !contains(part, "not("))
            return true;
    }
    return false;
}

class Outliner {
  public:
    explicit Outliner(std::string_view jinja) : rest_(jinja) {
        // As Jinja does by default.
        if (rest_.ends_with('\n'))
            rest_.remove_suffix(1);
    }

    Result<TemplateOutline> run() {
        while (!rest_.empty()) {
            size_t open = next_open();
            raw(rest_.substr(0, open), open);
            if (open == rest_.size())
                break;
            rest_.remove_prefix(open);
            BERTH_TRY(block());
        }
        if (!branches_.empty())
            return fail(ErrorCode::kUnsupported, "a branch or loop of the template is not closed");
        return std::move(outline_);
    }

  private:
    struct Branch {
        std::string condition;
        bool is_loop = false;
        bool is_skipped = false;
    };

    size_t next_open() const {
        for (size_t at = 0; at + 1 < rest_.size(); ++at) {
            if (rest_[at] == '{' &&
                (rest_[at + 1] == '{' || rest_[at + 1] == '%' || rest_[at + 1] == '#'))
                return at;
        }
        return rest_.size();
    }

    // Text between blocks, with the white space control that chat templates are rendered with:
    // "-", and for statements one line end after and the blanks before on the same line.
    void raw(std::string_view text, size_t open) {
        if (strips_next_)
            text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
        else if (was_statement_ && text.starts_with('\n'))
            text.remove_prefix(1);
        if (open < rest_.size()) {
            bool strips = open + 2 < rest_.size() && rest_[open + 2] == '-';
            if (strips) {
                size_t last = text.find_last_not_of(kSpaces);
                text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
            } else if (rest_[open + 1] != '{') {
                size_t last = text.find_last_not_of(" \t");
                bool from_line_start = last == std::string_view::npos || text[last] == '\n';
                if (from_line_start)
                    text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
            }
        }
        if (!text.empty())
            write(std::string(text));
    }

    // The block's end, found outside of quotes.
    size_t find_close(std::string_view close) const {
        char quote = 0;
        for (size_t at = 2; at + 1 < rest_.size(); ++at) {
            char c = rest_[at];
            if (quote != 0) {
                if (c == '\\')
                    ++at;
                else if (c == quote)
                    quote = 0;
            } else if (close != "#}" && (c == '\'' || c == '"')) {
                quote = c;
            } else if (rest_.substr(at, 2) == close) {
                return at;
            }
        }
        return std::string_view::npos;
    }

    Status block() {
        char kind = rest_[1];
        std::string_view close = kind == '{' ? "}}" : (kind == '%' ? "%}" : "#}");
        size_t end = find_close(close);
        if (end == std::string_view::npos)
            return fail(ErrorCode::kUnsupported, "the template has a block without its end");
        std::string_view inner = rest_.substr(2, end - 2);
        rest_.remove_prefix(end + 2);
        if (inner.starts_with('-') || inner.starts_with('+'))
            inner.remove_prefix(1);
        strips_next_ = inner.ends_with('-');
        if (strips_next_)
            inner.remove_suffix(1);
        was_statement_ = kind != '{';
        if (kind == '{')
            write(reduce(trim(inner)));
        else if (kind == '%')
            return statement(trim(inner));
        return {};
    }

    void write(const std::string& text) {
        for (const Branch& branch : branches_) {
            if (branch.is_skipped)
                return;
        }
        if (!continues_) {
            outline_.outputs.emplace_back();
            for (const Branch& branch : branches_) {
                outline_.outputs.back().conditions += branch.condition + "; ";
                outline_.outputs.back().in_loop |= branch.is_loop;
            }
            continues_ = true;
        }
        outline_.outputs.back().text += text;
    }

    Status statement(std::string_view tag) {
        continues_ = false;
        outline_.tags += std::string(tag) + "\n";
        std::string_view word = tag.substr(0, tag.find_first_of(kSpaces));
        std::string_view rest = trim(tag.substr(word.size()));
        if (word == "if") {
            branches_.push_back({std::string(rest), false, needs_tools(rest)});
        } else if (word == "for") {
            branches_.push_back({std::string(rest), true, needs_tools(rest)});
        } else if (word == "elif" || word == "else") {
            if (branches_.empty())
                return fail(ErrorCode::kUnsupported, "the template has a branch without its 'if'");
            Branch& branch = branches_.back();
            // Where assistants without tool calls came before, those with them are left.
            bool is_rest =
                contains(branch.condition, "not message.tool_calls") && contains(rest, "assistant");
            branch.is_skipped = word == "elif" && (needs_tools(rest) || is_rest);
            branch.condition += word == "else" ? " else" : " elif " + std::string(rest);
        } else if (word == "endif" || word == "endfor") {
            if (branches_.empty())
                return fail(ErrorCode::kUnsupported,
                            fmt::format("the template has a stray '{}'", word));
            branches_.pop_back();
        } else if (word == "set") {
            return set(rest);
        } else if (word != "generation" && word != "endgeneration") {
            bool is_skipped = std::any_of(branches_.begin(), branches_.end(),
                                          [](const Branch& branch) { return branch.is_skipped; });
            if (!is_skipped)
                return fail(ErrorCode::kUnsupported,
                            fmt::format("the template has a '{}' statement", word));
        }
        return {};
    }

    // A variable that is put together from markers is as good as an output.
    Status set(std::string_view assignment) {
        size_t equals = assignment.find('=');
        if (equals == std::string_view::npos)
            return fail(ErrorCode::kUnsupported, "the template has a block assignment");
        std::string name(trim(assignment.substr(0, equals)));
        std::string value = reduce(trim(assignment.substr(equals + 1)));
        if (contains(value, "<|") || contains(value, "{bos}"))
            write(value);
        continues_ = false;
        bool is_skipped = std::any_of(branches_.begin(), branches_.end(),
                                      [](const Branch& branch) { return branch.is_skipped; });
        if (!is_skipped)
            outline_.variables[name] = value;
        return {};
    }

    std::string_view rest_;
    TemplateOutline outline_;
    std::vector<Branch> branches_;
    bool strips_next_ = false;
    bool was_statement_ = false;
    bool continues_ = false; // the next output belongs to the same run
};

} // namespace

Result<TemplateOutline> outline_template(std::string_view jinja) {
    return Outliner(jinja).run();
}

} // namespace berth::text
