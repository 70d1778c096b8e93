// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/batch_file.h"

#include "base/json.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <map>

namespace berth::serve {
namespace {

constexpr size_t kShownMax = 10;

// Calls `use` with each line and its number, from 1.
template <typename Use>
void each_line(std::string_view text, Use use) {
    for (uint64_t number = 1; !text.empty(); ++number) {
        size_t end = text.find('\n');
        use(number, text.substr(0, end));
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
}

bool is_blank(std::string_view line) {
    return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

Result<BatchItem> parse_item(std::string_view line, uint64_t number) {
    std::string what = fmt::format("line {}", number);
    BERTH_ASSIGN(json::value parsed, json::parse(line, what));
    json::Reader reader(parsed, what);
    reader.allow_unknown();
    BatchItem item;
    item.line = number;
    item.custom_id = reader.string("custom_id");
    std::string method = reader.string("method", "POST");
    std::string url = reader.string("url");
    const json::value* body = reader.any("body");
    BERTH_TRY(reader.finish());
    if (item.custom_id.empty())
        reader.refuse("custom_id", "is empty");
    if (method != "POST")
        reader.refuse("method", "expected POST, found '" + method + "'");
    if (url == "/v1/chat/completions")
        item.kind = CallKind::kChat;
    else if (url != "/v1/completions")
        reader.refuse("url",
                      "expected /v1/completions or /v1/chat/completions, found '" + url + "'");
    if (body == nullptr || !body->is_object())
        reader.refuse("body", "expected an object");
    BERTH_TRY(reader.finish());
    item.body = json::serialize(*body);
    return item;
}

// The custom_id of a line of the output; an error when the line is no answer.
Result<std::string> answered_id(std::string_view line, const std::string& what) {
    BERTH_ASSIGN(json::value parsed, json::parse(line, what));
    json::Reader reader(parsed, what);
    reader.allow_unknown();
    std::string id = reader.string("custom_id");
    BERTH_TRY(reader.finish());
    return id;
}

Result<std::string> read_all(int fd, const std::string& path) {
    std::string text;
    std::string buffer(size_t{1} << 20, '\0');
    for (;;) {
        ssize_t got = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(text.size()));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno("reading " + path);
        if (got == 0)
            return text;
        text.append(buffer, 0, static_cast<size_t>(got));
        if (text.size() > kBatchBytesMax)
            return fail(ErrorCode::kResourceExhausted, path + ": over 4 GiB: split the batch");
    }
}

// The entry of a new file is on disk only once its folder is.
Status sync_folder_of(const std::string& path) {
    size_t slash = path.rfind('/');
    std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!opened || ::fsync(opened.get()) != 0)
        return fail_errno("syncing the folder " + folder);
    return {};
}

} // namespace

Result<std::vector<BatchItem>> read_batch_input(const std::string& path) {
    BERTH_ASSIGN(std::string text, read_file(path, kBatchBytesMax));
    return parse_batch_input(text, path);
}

Result<std::vector<BatchItem>> parse_batch_input(std::string_view text, const std::string& path) {
    std::vector<BatchItem> items;
    std::map<std::string, uint64_t> lines;
    std::string found;
    size_t wrong = 0;
    auto report = [&](const std::string& message) {
        if (++wrong <= kShownMax)
            found += "\n  " + message;
    };
    each_line(text, [&](uint64_t number, std::string_view line) {
        if (is_blank(line))
            return;
        Result<BatchItem> item = parse_item(line, number);
        if (!item) {
            report(item.error().message);
            return;
        }
        auto [first, is_new] = lines.emplace(item->custom_id, number);
        if (!is_new)
            report(fmt::format("line {}: custom_id '{}' is already that of line {}", number,
                               item->custom_id, first->second));
        else
            items.push_back(std::move(*item));
    });
    if (wrong > kShownMax)
        found += fmt::format("\n  and {} more", wrong - kShownMax);
    if (wrong > 0)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: nothing was started, since {} of its lines {} wrong:{}", path,
                                wrong, wrong == 1 ? "is" : "are", found));
    if (items.empty())
        return fail(ErrorCode::kInvalidArgument, path + ": the batch has no lines");
    return items;
}

Result<BatchOutput> BatchOutput::open(const std::string& path) {
    BatchOutput output;
    output.path_ = path;
    output.file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!output.file_)
        return fail_errno("opening the batch output " + path);
    if (::flock(output.file_.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return fail_errno("locking the batch output " + path);
        return fail(ErrorCode::kAlreadyExists,
                    fmt::format("the batch output {} is being written by another process: wait for "
                                "it, or choose another file",
                                path));
    }
    BERTH_TRY(sync_folder_of(path));
    BERTH_ASSIGN(std::string text, read_all(output.file_.get(), path));
    size_t whole = text.rfind('\n') + 1; // 0 when there is none
    if (whole < text.size()) {
        if (::ftruncate(output.file_.get(), static_cast<off_t>(whole)) != 0 ||
            ::fsync(output.file_.get()) != 0)
            return fail_errno("cutting half a line off the batch output " + path);
        text.resize(whole);
    }
    BERTH_TRY(output.read_answers(text));
    output.bytes_ = whole;
    return output;
}

Status BatchOutput::read_answers(const std::string& text) {
    Status status;
    each_line(text, [&](uint64_t number, std::string_view line) {
        if (!status)
            return;
        std::string what = fmt::format("{}: line {}", path_, number);
        Result<std::string> id = answered_id(line, what);
        if (!id)
            status = fail(ErrorCode::kCorrupt, id.error().message + ": this is no batch output; "
                                                                    "move it away or choose "
                                                                    "another file");
        else if (!answered_.insert(*id).second)
            status = fail(ErrorCode::kCorrupt,
                          fmt::format("{}: custom_id '{}' is answered twice", what, *id));
    });
    return status;
}

Status BatchOutput::append(const std::string& lines) {
    if (is_broken_)
        return fail(ErrorCode::kFailedPrecondition,
                    path_ + ": an earlier write failed half way; start the engine again");
    size_t written = 0;
    while (written < lines.size()) {
        ssize_t got = ::write(file_.get(), lines.data() + written, lines.size() - written);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            break;
        written += static_cast<size_t>(got);
    }
    if (written == lines.size() && ::fdatasync(file_.get()) == 0) {
        bytes_ += lines.size();
        return {};
    }
    auto failed = fail_errno("writing the batch output " + path_);
    is_broken_ = ::ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0;
    return failed;
}

} // namespace berth::serve
