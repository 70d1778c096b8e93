// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/policy_book.h"

#include "base/unique_fd.h"
#include "policies/yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace berth {

namespace {

// "000012 /etc/berth/policies/a.yaml": sorts in the order of application.
std::string source_of(uint64_t number, const std::string& file) {
    return fmt::format("{:06} {}", number, file);
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

} // namespace

Result<policies::Documents> PolicyBook::read_files(const std::string& config_file) {
    BERTH_ASSIGN(std::string text, read_file(config_file, policies::kYamlBytesMax));
    BERTH_ASSIGN(policies::Documents own, policies::parse_fragment(text, config_file));
    if (!own.node)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: no document of kind Node: berthd needs one", config_file));
    std::vector<std::string> paths = {config_file};
    paths.insert(paths.end(), own.node->policies.begin(), own.node->policies.end());
    return policies::load_paths(paths);
}

Result<PolicyBook> PolicyBook::open(const std::string& config_file,
                                    const std::vector<PolicyRecord>& applied,
                                    std::vector<std::string>& warnings) {
    PolicyBook book;
    book.config_file_ = config_file;
    BERTH_ASSIGN(book.files_, read_files(config_file));
    for (const PolicyRecord& record : applied) {
        uint64_t number = 0;
        std::from_chars(record.source.data(), record.source.data() + record.source.size(), number);
        book.next_number_ = std::max(book.next_number_, number + 1);
        auto parsed = policies::parse_fragment(record.text, file_of(record.source));
        auto fits =
            parsed ? book.merged(&*parsed) : Result<policies::Documents>(fail(parsed.error()));
        if (!fits) {
            warnings.push_back(
                fmt::format("what was applied earlier ({}) no longer fits and is left "
                            "out: {}",
                            record.source, fits.error().message));
            continue;
        }
        book.applied_.push_back({record, std::move(*parsed)});
    }
    BERTH_ASSIGN(book.documents_, book.merged());
    return book;
}

Result<policies::Documents> PolicyBook::merged(const policies::Documents* last) const {
    policies::Documents all = files_;
    for (const Applied& one : applied_)
        all = policies::overlay(std::move(all), one.documents);
    if (last != nullptr)
        all = policies::overlay(std::move(all), *last);
    BERTH_TRY(policies::check_documents(all));
    return all;
}

Status PolicyBook::reload() {
    BERTH_ASSIGN(policies::Documents files, read_files(config_file_));
    std::swap(files_, files);
    auto all = merged();
    if (!all) {
        std::swap(files_, files);
        return fail(all.error());
    }
    documents_ = std::move(*all);
    return {};
}

Result<policies::Documents> PolicyBook::preview(const std::string& text,
                                                const std::string& file) const {
    BERTH_ASSIGN(policies::Documents update, policies::parse_fragment(text, file));
    if (update.node)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: a Node document is read from the configuration file alone; "
                                "change {} and restart berthd",
                                file, config_file_));
    return merged(&update);
}

Result<std::vector<StoreWrite>> PolicyBook::apply(const std::string& text,
                                                  const std::string& file) {
    BERTH_ASSIGN(policies::Documents all, preview(text, file));
    BERTH_ASSIGN(policies::Documents update, policies::parse_fragment(text, file));
    std::vector<StoreWrite> writes;
    std::erase_if(applied_, [&](const Applied& old) {
        if (!covers(update, old.documents))
            return false;
        writes.emplace_back(ForgetPolicy{old.record.source});
        return true;
    });
    PolicyRecord record{source_of(next_number_++, file), text};
    writes.emplace_back(record);
    applied_.push_back({std::move(record), std::move(update)});
    documents_ = std::move(all);
    return writes;
}

Result<std::vector<StoreWrite>> PolicyBook::forget_applied() {
    std::vector<StoreWrite> writes;
    for (const Applied& one : applied_)
        writes.emplace_back(ForgetPolicy{one.record.source});
    std::vector<Applied> before = std::move(applied_);
    applied_.clear();
    auto all = merged();
    if (!all) {
        applied_ = std::move(before);
        return fail(all.error());
    }
    documents_ = std::move(*all);
    return writes;
}

} // namespace berth
