// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/lead.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

namespace berth::engine {

namespace {

using protocol::CommandKind;

constexpr auto kCallWait = std::chrono::seconds(120); // saving gigabytes takes its time
constexpr auto kLookAgain = std::chrono::milliseconds(20);
constexpr auto kLossWait = std::chrono::seconds(1);

tl::unexpected<Error> not_alike() {
    return fail(ErrorCode::kUnavailable,
                "the ranks are no longer at the same place: this instance ends", "RankLost");
}

} // namespace

Lead::Lead(RankLinks& links) : links_(links), others_(links.ranks() - 1) {
    links_.hear(*this);
}

Lead::~Lead() {
    links_.hear_no_more();
}

void Lead::set_calls(std::function<void()> wake, std::function<void()> end_asked) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
    end_asked_ = std::move(end_asked);
}

void Lead::grant_hold(uint32_t rank) {
    other(rank).front.reset();
    other(rank).holds = true;
    links_.send(rank, {NoteKind::kHold, {}, {}});
}

void Lead::hear_has(uint32_t from, const Note& note) {
    const auto kind = static_cast<CommandKind>(note.words.empty() ? 0 : note.words[0]);
    if (kind == CommandKind::kResume) {
        other(from).holds = false;
        return;
    }
    other(from).front = Command{kind, get_long(note.words, 1)};
    if (kind == CommandKind::kPause && !moving_)
        grant_hold(from);
}

void Lead::on_note(uint32_t from, Note note) {
    const std::lock_guard lock(mutex_);
    Other& its = other(from);
    switch (note.kind) {
    case NoteKind::kReady:
        its.ready = std::move(note.words);
        break;
    case NoteKind::kHas:
        hear_has(from, note);
        break;
    case NoteKind::kDropped:
        its.front.reset();
        break;
    case NoteKind::kFree:
        its.free = true;
        its.goes_on = !note.words.empty() && note.words[0] != 0;
        its.holds = note.words.size() > 1 && note.words[1] != 0;
        if (its.front && its.front->kind == CommandKind::kPause)
            its.front.reset(); // it was answered there
        break;
    case NoteKind::kAck:
        its.acknowledged = true;
        its.error = get_error(note);
        break;
    case NoteKind::kWantsEnd:
        if (end_asked_)
            end_asked_();
        break;
    default:
        break;
    }
    changed_.notify_all();
    if (wake_)
        wake_();
}

Status Lead::await_ready(uint64_t arena_bytes, uint64_t block_bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
        return std::ranges::all_of(others_, [](const Other& one) { return !one.ready.empty(); });
    });
    for (uint32_t rank = 1; rank < links_.ranks(); ++rank) {
        const std::vector<uint32_t>& ready = other(rank).ready;
        if (get_long(ready, 0) != arena_bytes || get_long(ready, 2) != block_bytes)
            return fail(ErrorCode::kMismatch,
                        fmt::format("rank {} has {} of KV memory in blocks of {}, rank 0 has {} in "
                                    "blocks of {}: the grants of an instance's ranks are equal",
                                    rank, format_bytes_exact(get_long(ready, 0)),
                                    format_bytes_exact(get_long(ready, 2)),
                                    format_bytes_exact(arena_bytes),
                                    format_bytes_exact(block_bytes)),
                        "RanksDiffer");
    }
    return {};
}

bool Lead::begin_step() {
    const std::lock_guard lock(mutex_);
    if (broken_ || std::ranges::any_of(others_, [](const Other& one) { return one.holds; }))
        return false;
    moving_ = true;
    return true;
}

void Lead::end_step() {
    const std::lock_guard lock(mutex_);
    moving_ = false;
    for (uint32_t rank = 1; rank < links_.ranks(); ++rank) {
        if (other(rank).front && other(rank).front->kind == CommandKind::kPause)
            grant_hold(rank);
    }
}

bool Lead::settle(const std::function<bool()>& look, const std::function<bool()>& wish) {
    bool goes_on = look();
    if (on_wait_)
        on_wait_(true);
    std::unique_lock lock(mutex_);
    const auto all_free = [&] {
        return std::ranges::all_of(others_, [](const Other& one) { return one.free; });
    };
    while (!changed_.wait_for(lock, kLookAgain, all_free)) {
        lock.unlock();
        if (wish())
            goes_on = look() && goes_on;
        lock.lock();
    }
    for (Other& one : others_) {
        goes_on = goes_on && one.goes_on;
        one.free = false;
    }
    lock.unlock();
    if (on_wait_)
        on_wait_(false);
    links_.send_to_others({NoteKind::kVerdict, {goes_on ? 1U : 0U}, {}});
    return goes_on;
}

bool Lead::held() const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(others_, [](const Other& one) { return one.holds; });
}

bool Lead::wants_hold() const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(others_, [](const Other& one) {
        return one.front && one.front->kind == CommandKind::kPause;
    });
}

bool Lead::agreed(const protocol::Command& command, std::string& missing) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> without;
    for (uint32_t rank = 1; rank < links_.ranks(); ++rank) {
        const std::optional<Command>& its = other(rank).front;
        if (!its)
            without.push_back(fmt::format("rank {} has none", rank));
        else if (its->kind != command.kind || its->grant_bytes != command.grant_bytes)
            without.push_back(fmt::format("rank {} has {} to {}", rank, to_string(its->kind),
                                          format_bytes_exact(its->grant_bytes)));
    }
    missing = fmt::format("{}", fmt::join(without, ", "));
    if (!without.empty())
        return false;
    for (Other& one : others_)
        one.front.reset();
    links_.send_to_others({NoteKind::kObey, {static_cast<uint32_t>(command.kind)}, {}});
    return true;
}

void Lead::done(const protocol::Command& command, const std::optional<Error>& error) {
    Note note{NoteKind::kDone, {}, {}};
    if (error)
        put_error(note, *error);
    const std::lock_guard lock(mutex_);
    if (command.kind == CommandKind::kRestore && !error) // goes on, whatever held it
        for (Other& one : others_)
            one.holds = false;
    links_.send_to_others(note);
}

Status Lead::call(const Note& note) {
    std::unique_lock lock(mutex_);
    if (broken_)
        return not_alike();
    for (Other& one : others_)
        one.acknowledged = false;
    links_.send_to_others(note);
    const bool all = changed_.wait_for(lock, kCallWait, [&] {
        return std::ranges::all_of(others_, [](const Other& one) { return one.acknowledged; });
    });
    for (uint32_t rank = 1; rank < links_.ranks(); ++rank) {
        if (!other(rank).acknowledged)
            return fail(ErrorCode::kDeadlineExceeded, fmt::format("rank {} does not answer", rank));
        if (all && other(rank).error)
            return fail_in(fmt::format("rank {}", rank), *other(rank).error);
    }
    return {};
}

Status Lead::step(std::span<const StepItem> items, const LayerHook&) {
    links_.send_to_others({NoteKind::kStep, plan_words(items), {}});
    return {};
}

Status Lead::canary(uint32_t block) {
    {
        const std::lock_guard lock(mutex_);
        if (broken_)
            return not_alike();
    }
    links_.send_to_others({NoteKind::kCanary, {block}, {}});
    return {};
}

Status Lead::copy_blocks(std::span<const BlockMove> moves) {
    Note note{NoteKind::kMove, {}, {}};
    for (const BlockMove& move : moves)
        note.words.insert(note.words.end(), {move.from, move.to});
    return call(note);
}

Status Lead::resize(uint64_t arena_bytes) {
    Note note{NoteKind::kResize, {}, {}};
    put_long(note.words, arena_bytes);
    return call(note);
}

Status Lead::save(uint64_t number, std::span<const uint32_t> blocks) {
    Note note{NoteKind::kSave, {}, {}};
    put_long(note.words, number);
    note.words.insert(note.words.end(), blocks.begin(), blocks.end());
    return call(note);
}

Status Lead::bring_back(uint64_t number, std::span<const uint32_t> blocks) {
    Note note{NoteKind::kBringBack, {}, {}};
    put_long(note.words, number);
    note.words.insert(note.words.end(), blocks.begin(), blocks.end());
    return call(note);
}

void Lead::forget(uint64_t number) {
    Note note{NoteKind::kForget, {}, {}};
    put_long(note.words, number);
    links_.send_to_others(note);
}

void Lead::broken() {
    std::unique_lock lock(mutex_);
    broken_ = true;
    changed_.wait_for(lock, kLossWait, [] { return false; });
}

void Lead::end() {
    links_.expect_end();
    links_.send_to_others({NoteKind::kEnd, {}, {}});
}

} // namespace berth::engine
