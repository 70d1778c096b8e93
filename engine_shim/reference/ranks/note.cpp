// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/note.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>

#include <sys/socket.h>
#include <sys/uio.h>

namespace berth::engine {

namespace {

constexpr uint32_t kWordsMax = uint32_t{16} << 20;
constexpr uint32_t kTextMax = uint32_t{1} << 20;
constexpr uint32_t kDecode = 1, kSamples = 2; // flags of an item
constexpr size_t kItemWords = 5;

struct Header {
    uint32_t kind = 0;
    uint32_t words = 0;
    uint32_t text = 0;
};

tl::unexpected<Error> gone() {
    return fail(ErrorCode::kUnavailable, "the connection is closed");
}

Status receive_all(int socket, void* to, size_t bytes) {
    auto* at = static_cast<char*>(to);
    while (bytes > 0) {
        const ssize_t got = ::recv(socket, at, bytes, 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return gone();
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno("receiving from another rank");
        at += got;
        bytes -= static_cast<size_t>(got);
    }
    return {};
}

} // namespace

Status send_note(int socket, const Note& note) {
    Header header{static_cast<uint32_t>(note.kind), static_cast<uint32_t>(note.words.size()),
                  static_cast<uint32_t>(note.text.size())};
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes.append(reinterpret_cast<const char*>(note.words.data()),
                 note.words.size() * sizeof(uint32_t));
    bytes.append(note.text);
    for (size_t sent = 0; sent < bytes.size();) {
        const ssize_t put = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && (errno == EPIPE || errno == ECONNRESET))
            return gone();
        if (put < 0)
            return fail_errno("sending to another rank");
        sent += static_cast<size_t>(put);
    }
    return {};
}

Result<Note> receive_note(int socket) {
    Header header;
    BERTH_TRY(receive_all(socket, &header, sizeof header));
    if (header.words > kWordsMax || header.text > kTextMax)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("another rank sent {} words and {} bytes of text in one message: "
                                "are all ranks of the same build?",
                                header.words, header.text));
    Note note{static_cast<NoteKind>(header.kind), std::vector<uint32_t>(header.words),
              std::string(header.text, '\0')};
    BERTH_TRY(receive_all(socket, note.words.data(), note.words.size() * sizeof(uint32_t)));
    BERTH_TRY(receive_all(socket, note.text.data(), note.text.size()));
    return note;
}

void put_long(std::vector<uint32_t>& words, uint64_t value) {
    words.push_back(static_cast<uint32_t>(value));
    words.push_back(static_cast<uint32_t>(value >> 32));
}

uint64_t get_long(std::span<const uint32_t> words, size_t at) {
    return at + 1 < words.size() ? words[at] | uint64_t{words[at + 1]} << 32 : 0;
}

void put_error(Note& note, const Error& error) {
    note.words = {static_cast<uint32_t>(error.code) + 1};
    note.text = error.reason + "\n" + error.message;
}

std::optional<Error> get_error(const Note& note) {
    if (note.words.empty() || note.words[0] == 0)
        return std::nullopt;
    const size_t line = note.text.find('\n');
    return Error{static_cast<ErrorCode>(note.words[0] - 1),
                 line == std::string::npos ? note.text : note.text.substr(line + 1),
                 line == std::string::npos ? std::string() : note.text.substr(0, line), 0};
}

std::vector<uint32_t> plan_words(std::span<const StepItem> items) {
    std::vector<uint32_t> words;
    for (const StepItem& item : items) {
        const uint32_t flags = (item.decode ? kDecode : 0) | (item.samples ? kSamples : 0);
        words.insert(words.end(), {static_cast<uint32_t>(item.tokens.size()),
                                   static_cast<uint32_t>(item.blocks.size()), item.position,
                                   item.rope_length, flags});
        for (const int32_t token : item.tokens)
            words.push_back(static_cast<uint32_t>(token));
        words.insert(words.end(), item.blocks.begin(), item.blocks.end());
    }
    return words;
}

Result<StepPlan> plan_from(std::span<const uint32_t> words) {
    StepPlan plan;
    while (!words.empty()) {
        if (words.size() < kItemWords || uint64_t{words[0]} + words[1] > words.size() - kItemWords)
            return fail(ErrorCode::kCorrupt, "rank 0 sent a step that is cut short");
        const std::span<const uint32_t> tokens = words.subspan(kItemWords, words[0]);
        const std::span<const uint32_t> blocks = words.subspan(kItemWords + words[0], words[1]);
        plan.tokens.emplace_back(tokens.begin(), tokens.end());
        plan.blocks.emplace_back(blocks.begin(), blocks.end());
        StepItem item;
        item.position = words[2];
        item.rope_length = words[3];
        item.decode = (words[4] & kDecode) != 0;
        item.samples = (words[4] & kSamples) != 0;
        item.params.temperature = 0;
        plan.items.push_back(item);
        words = words.subspan(kItemWords + words[0] + words[1]);
    }
    for (size_t at = 0; at < plan.items.size(); ++at) {
        plan.items[at].tokens = plan.tokens[at];
        plan.items[at].blocks = plan.blocks[at];
    }
    return plan;
}

} // namespace berth::engine
