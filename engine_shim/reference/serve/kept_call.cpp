// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/kept_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace berth::serve {

namespace {

// The memo: these, then the id.
struct MemoHead {
    int64_t created = 0;
    uint64_t seed = 0;
};
static_assert(sizeof(MemoHead) == 16);

// An entry: the token's id, which choice, why it is the last one (0: it is not).
uint64_t entry_of(size_t choice, const engine::TokenEvent& event) {
    const auto reason =
        static_cast<uint64_t>(event.finished ? event.finish_reason : engine::FinishReason::kNone);
    return static_cast<uint32_t>(event.token) | uint64_t{choice & 0xffff} << 32 | reason << 48;
}

bool is_plain(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-';
}

} // namespace

bool KeptCall::restore(CompletionCall& call) const {
    const std::string_view memo = kept_->memo();
    if (memo.size() <= sizeof(MemoHead))
        return false;
    MemoHead head;
    std::memcpy(&head, memo.data(), sizeof head);
    const std::string_view id = memo.substr(sizeof head);
    if (!std::all_of(id.begin(), id.end(), is_plain))
        return false;
    call.id = id;
    call.created = head.created;
    call.settings.seed = head.seed;
    return true;
}

Result<std::vector<engine::TokenEvent>> KeptCall::events(const CompletionCall& call,
                                                         uint32_t vocab) const {
    std::vector<engine::TokenEvent> events;
    std::vector<uint32_t> given(call.prompts.size());
    for (const uint64_t entry : kept_->entries()) {
        engine::TokenEvent event;
        event.token = static_cast<int32_t>(static_cast<uint32_t>(entry));
        const size_t choice = (entry >> 32) & 0xffff;
        const uint64_t reason = entry >> 48;
        if (choice >= given.size() || event.token < 0 ||
            static_cast<uint32_t>(event.token) >= vocab ||
            reason > static_cast<uint64_t>(engine::FinishReason::kLength))
            return fail(
                ErrorCode::kCorrupt,
                fmt::format("entry {} of the journal is no token of this request", events.size()));
        event.id = call.request_id(choice);
        event.index = given[choice]++;
        event.finish_reason = static_cast<engine::FinishReason>(reason);
        event.finished = reason != 0;
        events.push_back(std::move(event));
    }
    return events;
}

void KeptCall::begin(const CompletionCall& call) {
    if (!kept_)
        return;
    const MemoHead head{call.created, call.settings.seed};
    std::string memo(sizeof head, '\0');
    std::memcpy(memo.data(), &head, sizeof head);
    kept_->note(memo + call.id);
}

void KeptCall::hand_over() const {
    if (kept_)
        http::KeptConnection::set(kept_->mark(), http::Work::kNone);
}

void KeptCall::mark(engine::GenerationRequest& request) const {
    if (!kept_ || !kept_->active())
        return;
    const http::KeptConnection::Mark mark = kept_->mark();
    request.is_suspect = kept_->is_suspect();
    request.on_work = [mark](bool is_computed) {
        http::KeptConnection::set(mark, is_computed ? http::Work::kComputed : http::Work::kNone);
    };
}

void KeptCall::add(size_t choice, const engine::TokenEvent& event) {
    if (kept_)
        kept_->append(entry_of(choice, event));
}

void KeptCall::cover(size_t events, AnswerStage stage) {
    if (kept_)
        kept_->cover(events, static_cast<uint32_t>(stage));
}

} // namespace berth::serve
