// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/model/step_model.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// What the ranks of one instance say to each other outside of collectives: short messages between
// rank 0 and each other rank, on one machine, from one build. All sides are trusted as much as the
// user they run as.
namespace berth::engine {

enum class NoteKind : uint32_t {
    // From rank 0.
    kBegin = 1, // all have met; words: how they compute together (GroupKind)
    kStep,      // words: plan_words()
    kVerdict,   // where all stand still: 1 goes on, 0 gives the step up
    kCanary,    // block
    kMove,      // from, to, from, to...
    kResize,    // arena bytes
    kSave,      // number, blocks...
    kBringBack, // number, blocks...
    kForget,    // number
    kHold,      // the Pause that was told may be answered: nobody steps until its Resume
    kObey,      // command kind: all have it, it is carried out now
    kDone,      // and is done; text and code: with this error
    kEnd,       // the instance ends, well
    kRaise,     // demand on this rank's device too
    kLower,
    kLost, // rank; text: why it is gone
    kLoop, // the start is over
    // To rank 0.
    kHello,    // rank, ranks; text: what must be the same everywhere, then the device
    kReady,    // arena bytes, bytes of a KV block
    kHas,      // command kind, grant bytes: berthd's command, at the head of this rank's
    kDropped,  // that command is no longer waited for
    kFree,     // at a standstill: 1 would go on; 1 is paused
    kAck,      // the last call is done; with an error if code is not 0
    kFailed,   // text: this rank ends, and why
    kWantsEnd, // somebody asked this rank to end
};

struct Note {
    NoteKind kind = NoteKind::kEnd;
    std::vector<uint32_t> words;
    std::string text;
};

// Blocking. Unavailable: the other side is gone.
Status send_note(int socket, const Note& note);
Result<Note> receive_note(int socket);

// 64 bits as two words, and back; 0 where words are missing.
void put_long(std::vector<uint32_t>& words, uint64_t value);
uint64_t get_long(std::span<const uint32_t> words, size_t at);

// An error as a note's text and first word, and back; nothing where there is none.
void put_error(Note& note, const Error& error);
std::optional<Error> get_error(const Note& note);

// A step's items without what only the sampler needs, and back.
std::vector<uint32_t> plan_words(std::span<const StepItem> items);
struct StepPlan {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<uint32_t>> blocks;
    std::vector<StepItem> items; // look into the two above
};
// Corrupt for what is no plan.
Result<StepPlan> plan_from(std::span<const uint32_t> words);

} // namespace berth::engine
