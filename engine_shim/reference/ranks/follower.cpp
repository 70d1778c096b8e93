// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/follower.h"

#include "base/log.h"

#include <fmt/format.h>

#include <utility>

namespace berth::engine {

namespace {

using protocol::CommandKind;

constexpr Nanoseconds kIdleWait = std::chrono::milliseconds(100);
constexpr auto kEndWait = std::chrono::seconds(10); // from asking for the end to it

} // namespace

Follower::Follower(Parts parts, Nanoseconds agree_wait) : parts_(parts), agree_wait_(agree_wait) {
    parts_.links.hear(*this);
}

Follower::~Follower() {
    parts_.links.hear_no_more();
}

// Demand does not wait for the step under way.
void Follower::on_note(uint32_t, Note note) {
    if (note.kind == NoteKind::kRaise)
        return parts_.host.raise_gate();
    if (note.kind == NoteKind::kLower)
        return parts_.host.lower_gate();
    {
        const std::lock_guard lock(mutex_);
        notes_.push_back(std::move(note));
        changed_.notify_all();
    }
    parts_.host.notify();
}

std::optional<Note> Follower::next_note() {
    const std::lock_guard lock(mutex_);
    if (notes_.empty())
        return std::nullopt;
    Note note = std::move(notes_.front());
    notes_.pop_front();
    return note;
}

// A rank 0 that is gone ends this process, so that nothing waits here for good.
Note Follower::await_note() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !notes_.empty(); });
    Note note = std::move(notes_.front());
    notes_.pop_front();
    return note;
}

void Follower::say_ready(uint64_t arena_bytes, uint64_t block_bytes) {
    Note note{NoteKind::kReady, {}, {}};
    put_long(note.words, arena_bytes);
    put_long(note.words, block_bytes);
    parts_.links.send(0, note);
}

void Follower::complete(const protocol::Command& command, std::optional<Error> error) {
    protocol::CommandDone done;
    done.id = command.id;
    done.grant_bytes = parts_.work.grant_bytes();
    done.host_bytes = parts_.work.host_bytes();
    if (error)
        log::warn("command={} failed: {}", protocol::to_string(command.kind), error->message);
    done.error = std::move(error);
    parts_.host.report({0, 0, 0, 0, steps_, done.grant_bytes});
    parts_.host.complete(std::move(done));
}

// Rank 0 knows the command at the head; a Resume changes nothing but who may step.
void Follower::tell_front() {
    while (!front_told_ && !commands_.empty()) {
        const protocol::Command command = commands_.front().first;
        if (command.kind == CommandKind::kServe) { // rank 0's alone
            commands_.pop_front();
            complete(command, std::nullopt);
            continue;
        }
        if (command.kind == CommandKind::kResume) {
            commands_.pop_front();
            complete(command, std::nullopt);
        } else {
            front_told_ = true;
        }
        Note note{NoteKind::kHas, {static_cast<uint32_t>(command.kind)}, {}};
        put_long(note.words, command.grant_bytes);
        parts_.links.send(0, note);
    }
}

void Follower::drop_old() {
    if (commands_.empty() || !front_told_ || Clock::now() - commands_.front().second < agree_wait_)
        return;
    const protocol::Command command = commands_.front().first;
    if (command.kind == CommandKind::kStop &&
        Clock::now() - commands_.front().second <
            agree_wait_ + std::chrono::milliseconds(std::max<int64_t>(command.grace_ms, 0)))
        return;
    commands_.pop_front();
    front_told_ = false;
    parts_.links.send(0, {NoteKind::kDropped, {}, {}});
    complete(command, Error{ErrorCode::kDeadlineExceeded,
                            fmt::format("rank {} was told to {} and rank 0 was not, or never came "
                                        "to a boundary: a command goes to all ranks of an "
                                        "instance",
                                        parts_.links.rank(), protocol::to_string(command.kind)),
                            "RanksDisagree", 0});
}

void Follower::take_commands() {
    while (auto command = parts_.host.next_command())
        commands_.emplace_back(*command, Clock::now());
    tell_front();
    drop_old();
}

void Follower::answer_pause() {
    if (commands_.empty() || commands_.front().first.kind != CommandKind::kPause)
        return;
    const protocol::Command command = commands_.front().first;
    commands_.pop_front();
    front_told_ = false;
    complete(command, std::nullopt);
}

// All ranks are here, none in a collective. This one sleeps while its gate or a Pause holds it, and
// then waits for rank 0's word.
bool Follower::stand_still() {
    parts_.host.step_ends(); // it computes nothing while it waits
    answer_pause();
    const bool goes_on = parts_.host.yield_here();
    parts_.links.send(0,
                      {NoteKind::kFree, {goes_on ? 1U : 0U, parts_.host.paused() ? 1U : 0U}, {}});
    const Note verdict = await_note();
    parts_.host.step_begins();
    return verdict.kind == NoteKind::kVerdict && !verdict.words.empty() && verdict.words[0] != 0;
}

void Follower::acknowledge(const Status& status) {
    Note note{NoteKind::kAck, {0}, {}};
    if (!status)
        put_error(note, status.error());
    parts_.links.send(0, note);
}

Status Follower::compute(const Note& note) {
    if (note.kind == NoteKind::kCanary)
        return parts_.work.canary(note.words.empty() ? 0 : note.words[0]);
    BERTH_ASSIGN(const StepPlan plan, plan_from(note.words));
    parts_.host.step_begins();
    const Status made = parts_.work.step(plan.items, [this](uint32_t) { return stand_still(); });
    parts_.host.step_ends();
    BERTH_TRY(made);
    parts_.host.report({0, 0, 0, 0, ++steps_, parts_.work.grant_bytes()});
    return {};
}

void Follower::finish(const Note& done) {
    if (!obeying_)
        return;
    const protocol::Command command = *std::exchange(obeying_, std::nullopt);
    complete(command, get_error(done));
}

// Errors of computing end this rank; those of memory are rank 0's to know.
Status Follower::obey(const Note& note) {
    const std::span<const uint32_t> words(note.words);
    switch (note.kind) {
    case NoteKind::kStep:
    case NoteKind::kCanary:
        return compute(note);
    case NoteKind::kMove: {
        std::vector<BlockMove> moves;
        for (size_t at = 0; at + 1 < words.size(); at += 2)
            moves.push_back({words[at], words[at + 1]});
        acknowledge(parts_.work.copy_blocks(moves));
        return {};
    }
    case NoteKind::kResize:
        acknowledge(parts_.work.resize(get_long(words, 0)));
        return {};
    case NoteKind::kSave:
        acknowledge(
            parts_.work.save(get_long(words, 0), words.subspan(std::min<size_t>(2, words.size()))));
        return {};
    case NoteKind::kBringBack:
        acknowledge(parts_.work.bring_back(get_long(words, 0),
                                           words.subspan(std::min<size_t>(2, words.size()))));
        return {};
    case NoteKind::kForget:
        parts_.work.forget(get_long(words, 0));
        return {};
    case NoteKind::kHold:
        answer_pause();
        return {};
    case NoteKind::kObey:
        if (!commands_.empty()) {
            obeying_ = commands_.front().first;
            commands_.pop_front();
            front_told_ = false;
        }
        return {};
    case NoteKind::kLoop:
        if (loop_begins_)
            loop_begins_();
        return {};
    case NoteKind::kDone:
        finish(note);
        return {};
    case NoteKind::kEnd:
        ended_ = true;
        return {};
    default:
        return fail(ErrorCode::kCorrupt,
                    fmt::format("rank 0 sent a message of kind {}, which this rank does not know: "
                                "are all ranks of the same build?",
                                static_cast<uint32_t>(note.kind)));
    }
}

void Follower::check_end_asked() {
    if (!end_asked_ || end_asked_at_)
        return;
    end_asked_at_ = Clock::now();
    log::info("asked to end: rank 0 ends the instance");
    parts_.links.send(0, {NoteKind::kWantsEnd, {}, {}});
}

Status Follower::run() {
    while (!ended_) {
        take_commands();
        check_end_asked();
        if (end_asked_at_ && Clock::now() - *end_asked_at_ > kEndWait)
            return fail(ErrorCode::kDeadlineExceeded,
                        "this rank was asked to end and rank 0 does not end the instance",
                        "RanksDisagree");
        const auto note = next_note();
        if (!note) {
            parts_.host.wait(kIdleWait);
            continue;
        }
        BERTH_TRY(obey(*note));
    }
    take_commands();
    for (const auto& [command, came] : commands_) {
        if (command.kind == CommandKind::kStop)
            complete(command, std::nullopt);
    }
    return {};
}

} // namespace berth::engine
