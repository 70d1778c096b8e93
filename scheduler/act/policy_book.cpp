// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/policy_book.h"

#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace berth {

namespace {

// "000012 /etc/berth/policies/a.yaml": sorts in the order of application. The files of one
// application have one number.
std::string source_of(uint64_t number, const std::string& file) {
    return fmt::format("{:06} {}", number, file);
}

uint64_t number_of(const std::string& source) {
    uint64_t number = 0;
    std::from_chars(source.data(), source.data() + source.size(), number);
    return number;
}

std::string file_of(const std::string& source) {
    size_t space = source.find(' ');
    return space == std::string::npos ? source : source.substr(space + 1);
}

// Whether everything that `old` says is said anew by `later`.
bool covers(const policies::Documents& later, const policies::Documents& old) {
    if (old.policy && !later.policy)
        return false;
    auto found_model = [&](const policies::ModelSpec& one) { return later.find_model(one.name); };
    auto found_instance = [&](const policies::InstanceSpec& one) {
        return later.find_instance(one.name);
    };
    return std::ranges::all_of(old.models, found_model) &&
           std::ranges::all_of(old.instances, found_instance);
}

// Without those whose every document a later one says anew.
std::vector<PolicyBook::Applied> without_covered(std::vector<PolicyBook::Applied> all) {
    std::vector<PolicyBook::Applied> kept;
    policies::Documents later;
    for (auto one = all.rbegin(); one != all.rend(); ++one) {
        if (covers(later, one->documents))
            continue;
        later = policies::overlay(one->documents, later);
        kept.push_back(std::move(*one));
    }
    std::ranges::reverse(kept);
    return kept;
}

std::string tag_of(const std::string& text) {
    return "\"" + sha256_hex(text).substr(0, 16) + "\"";
}

bool same_record(const PolicyBook::Applied& one, const PolicyBook::Applied& other) {
    return one.record == other.record;
}

// What an application says without that instance.
Result<PolicyBook::Applied> without(PolicyBook::Applied one, const std::string& instance) {
    one.record.text = policies::without_instance(one.record.text, instance);
    std::erase_if(one.documents.instances,
                  [&](const policies::InstanceSpec& other) { return other.name == instance; });
    const std::string file = file_of(one.record.source);
    const auto read = policies::parse_fragment(one.record.text, file);
    if (!read || !(*read == one.documents))
        return fail(ErrorCode::kInternal,
                    fmt::format("{}: Instance '{}' cannot be taken out of what was applied from "
                                "there; apply that file without it after `berth apply --reset`",
                                file, instance));
    return one;
}

bool is_empty(const policies::Documents& documents) {
    return !documents.policy && documents.models.empty() && documents.instances.empty();
}

// What is in `from` and not in `than`.
std::vector<const PolicyBook::Applied*> missing(const std::vector<PolicyBook::Applied>& from,
                                                const std::vector<PolicyBook::Applied>& than) {
    std::vector<const PolicyBook::Applied*> out;
    for (const PolicyBook::Applied& one : from)
        if (std::ranges::none_of(than, [&](const auto& other) { return same_record(one, other); }))
            out.push_back(&one);
    return out;
}

Result<policies::Documents> merged(policies::Documents all,
                                   const std::vector<PolicyBook::Applied>& applied) {
    for (const PolicyBook::Applied& one : applied)
        all = policies::overlay(std::move(all), one.documents);
    BERTH_TRY(policies::check_documents(all));
    return all;
}

} // namespace

Result<PolicyBook::PagePtr>
PolicyBook::page_of(policies::Documents files, std::vector<Applied> applied, uint64_t next_number) {
    auto page = std::make_shared<Page>();
    BERTH_ASSIGN(page->documents, merged(files, applied));
    page->files = std::move(files);
    page->applied = std::move(applied);
    page->effective = policies::effective_yaml(page->documents);
    page->tag = tag_of(page->effective);
    for (const policies::InstanceSpec& one : page->documents.instances)
        page->instance_tags[one.name] = tag_of(policies::effective_yaml(one));
    for (const Applied& one : page->applied)
        next_number = std::max(next_number, number_of(one.record.source) + 1);
    page->next_number = next_number;
    return PagePtr(std::move(page));
}

Result<PolicyBook> PolicyBook::open(const std::string& config_file,
                                    const std::vector<PolicyRecord>& applied,
                                    std::vector<std::string>& warnings) {
    PolicyBook book;
    book.config_file_ = config_file;
    BERTH_ASSIGN(policies::Documents files, policies::load_node(config_file));
    std::vector<Applied> kept;
    uint64_t next_number = 1;
    for (size_t begin = 0, end = 0; begin < applied.size(); begin = end) {
        // One application is taken or left as a whole: its files may name each other's documents.
        const uint64_t number = number_of(applied[begin].source);
        next_number = std::max(next_number, number + 1);
        std::vector<Applied> all = kept;
        Status read;
        for (end = begin; end < applied.size() && number_of(applied[end].source) == number; ++end) {
            auto parsed = policies::parse_fragment(applied[end].text, file_of(applied[end].source));
            if (parsed)
                all.push_back({applied[end], std::move(*parsed)});
            else
                read = fail(parsed.error());
        }
        auto fits = read ? merged(files, all) : Result<policies::Documents>(fail(read.error()));
        if (fits)
            kept = std::move(all);
        else
            warnings.push_back(
                fmt::format("what was applied earlier ({}) no longer fits and is left out: {}",
                            applied[begin].source, fits.error().message));
    }
    BERTH_ASSIGN(book.now_, page_of(std::move(files), std::move(kept), next_number));
    return book;
}

Result<PolicyBook::Change> PolicyBook::prepare_reload() const {
    Change change;
    change.of_files = true;
    change.before = now_;
    BERTH_ASSIGN(policies::Documents files, policies::load_node(config_file_));
    BERTH_ASSIGN(change.after, page_of(std::move(files), now_->applied, now_->next_number));
    return change;
}

std::vector<std::string> PolicyBook::hidden() const {
    std::vector<std::string> names;
    if (now_->files.policy && !(now_->files.policy == now_->documents.policy))
        names.emplace_back("ColocationPolicy");
    for (const policies::ModelSpec& one : now_->files.models)
        if (!(*now_->documents.find_model(one.name) == one))
            names.push_back("Model/" + one.name);
    for (const policies::InstanceSpec& one : now_->files.instances)
        if (!(*now_->documents.find_instance(one.name) == one))
            names.push_back("Instance/" + one.name);
    return names;
}

Result<PolicyBook::Change> PolicyBook::change_to(std::vector<Applied> applied) const {
    Change change;
    change.before = now_;
    BERTH_ASSIGN(change.after,
                 page_of(now_->files, without_covered(std::move(applied)), now_->next_number));
    // A record may have another text under its old source: forgotten first, then put.
    const std::vector<const Applied*> gone = missing(now_->applied, change.after->applied);
    const std::vector<const Applied*> fresh = missing(change.after->applied, now_->applied);
    for (const Applied* one : gone)
        change.writes.emplace_back(ForgetPolicy{one->record.source});
    for (const Applied* one : fresh) {
        change.writes.emplace_back(one->record);
        change.undo.emplace_back(ForgetPolicy{one->record.source});
    }
    for (const Applied* one : gone)
        change.undo.emplace_back(one->record);
    return change;
}

Result<PolicyBook::Change>
PolicyBook::prepare(const std::vector<policies::SourceText>& texts) const {
    BERTH_ASSIGN(const policies::Documents update, policies::parse_together(texts));
    if (update.node)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: a Node document is read from the configuration file alone; "
                                "change {} and restart berthd",
                                update.node->origin.text(), config_file_),
                    "InvalidDocument");
    std::vector<Applied> all = now_->applied;
    for (const policies::SourceText& one : texts) {
        BERTH_ASSIGN(policies::Documents part, policies::parse_fragment(one.text, one.file));
        all.push_back({{source_of(now_->next_number, one.file), one.text}, std::move(part)});
    }
    return change_to(std::move(all));
}

Result<PolicyBook::Change> PolicyBook::prepare_without(const std::string& instance) const {
    if (now_->documents.find_instance(instance) == nullptr) {
        std::vector<std::string> known;
        for (const policies::InstanceSpec& one : now_->documents.instances)
            known.push_back(one.name);
        const std::string near = policies::nearest_name(instance, known);
        return fail(ErrorCode::kNotFound,
                    fmt::format("no instance is named '{}'{}", instance,
                                near.empty() ? "" : fmt::format("; did you mean '{}'?", near)),
                    "InstanceNotFound");
    }
    if (const auto* in_files = now_->files.find_instance(instance))
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("Instance '{0}' is defined in {1}, and would come back with the "
                                "next reading of that file: take it out there, then send SIGHUP "
                                "to berthd (`berth drain {0}` ends it at once and keeps it away)",
                                instance, in_files->origin.text()),
                    "DefinedInFile");
    std::vector<Applied> left;
    for (const Applied& one : now_->applied) {
        if (one.documents.find_instance(instance) == nullptr) {
            left.push_back(one);
            continue;
        }
        BERTH_ASSIGN(Applied rest, without(one, instance));
        if (!is_empty(rest.documents))
            left.push_back(std::move(rest));
    }
    return change_to(std::move(left));
}

Result<PolicyBook::Change> PolicyBook::prepare_files_alone() const {
    return change_to({});
}

Status PolicyBook::commit(const Change& change) {
    if (change.before == now_) {
        now_ = change.after;
        return {};
    }
    const Page& files = change.of_files ? *change.after : *now_;
    const Page& applied = change.of_files ? *now_ : *change.after;
    BERTH_ASSIGN(now_, page_of(files.files, applied.applied, applied.next_number));
    return {};
}

} // namespace berth
