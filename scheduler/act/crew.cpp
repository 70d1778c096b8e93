// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/crew.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace berth {

namespace {

constexpr const char* kLostReason = "RankLost";
constexpr const char* kLostExit = "exit code 3"; // as describe_exit() has it

std::string with_rank(uint32_t rank, const std::string& words) {
    return fmt::format("rank {}: {}", rank, words);
}

} // namespace

Crew::Crew(node::InstanceName name, std::vector<std::string> tokens, Hands hands)
    : name_(std::move(name)), hands_(std::move(hands)), ranks_(tokens.size()) {
    for (size_t rank = 0; rank < tokens.size(); ++rank)
        ranks_[rank].token_sha256 = std::move(tokens[rank]);
}

void Crew::adopted(const std::vector<node::ProcessRef>& processes,
                   const std::vector<uint32_t>& gone) {
    told_started_ = true;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        ranks_[rank].begun = true;
        ranks_[rank].process = processes.at(rank);
    }
    for (uint32_t rank : gone) {
        ranks_[rank].end = node::ProcessExited{name_, ranks_[rank].process, false,
                                               "ended while the daemon was away", ""};
        ends_.push_back(rank);
    }
    if (!gone.empty())
        end_rest();
}

std::string Crew::who(uint32_t rank) const {
    return fmt::format("rank {} (pid {})", rank, ranks_[rank].process.pid);
}

// One overload for each kind of event that a rank can be the cause of.
struct Crew::Hearing {
    Crew& crew;
    uint32_t rank;

    template <typename Other>
    void operator()(const Other&) const {} // nothing is made of it
    void operator()(const node::ProcessStarted& event) const { crew.started(rank, event); }
    void operator()(const node::ProcessStartFailed& event) const { crew.start_failed(rank, event); }
    void operator()(const node::ProcessExited& event) const { crew.ended(rank, event); }
    void operator()(const node::SessionOpened& event) const { crew.opened(rank, event); }
    void operator()(const node::SessionClosed&) const { crew.closed(rank); }
    void operator()(node::EngineStateChanged& event) const { crew.changed(rank, std::move(event)); }
    // The further ranks' figures are not told, but that they are heard is.
    void operator()(node::EngineReport& event) const {
        if (crew.told_open_ && rank == 0)
            crew.hands_.tell(std::move(event));
        else if (crew.told_open_)
            crew.hands_.tell(node::EngineHeard{crew.name_, rank});
    }
    void operator()(const node::CommandDone& event) const { crew.answered(rank, event); }
    // Rank 0 alone answers requests.
    void operator()(node::ProcessDying& event) const {
        if (rank == 0)
            crew.hands_.tell(std::move(event));
    }
    void operator()(node::LeaderExited& event) const {
        crew.end_rest();
        crew.told_lingering_ = true;
        event.process = crew.ranks_.front().process;
        event.description = crew.who(rank) + ": " + event.description;
        crew.hands_.tell(std::move(event));
    }
    void operator()(node::KillRefused& event) const {
        event.process = crew.ranks_.front().process;
        event.words = crew.who(rank) + ": " + event.words;
        crew.hands_.tell(std::move(event));
    }
};

void Crew::hear(uint32_t rank, node::Event event) {
    if (!over_ && rank < size())
        std::visit(Hearing{*this, rank}, event);
}

void Crew::started(uint32_t rank, const node::ProcessStarted& event) {
    ranks_[rank].process = event.process;
    ranks_[rank].begun = true;
    if (start_error_ || (!ends_.empty() && !expects_end_))
        hands_.end(rank, event.process);
    finish_start();
}

void Crew::start_failed(uint32_t rank, const node::ProcessStartFailed& event) {
    ranks_[rank].begun = ranks_[rank].failed = true;
    if (!start_error_) {
        start_error_ = event.error;
        start_error_->message = with_rank(rank, event.error.message);
    }
    end_rest();
    finish_start();
}

void Crew::finish_start() {
    if (told_started_ || !std::ranges::all_of(ranks_, &Rank::begun))
        return;
    if (start_error_)
        return finish();
    told_started_ = true;
    node::ProcessStarted all{name_, ranks_.front().process, ranks_.front().token_sha256, {}};
    for (size_t rank = 1; rank < ranks_.size(); ++rank)
        all.others.push_back({ranks_[rank].process, ranks_[rank].token_sha256});
    hands_.tell(std::move(all));
    if (over_)
        return;
    join_sessions();
    finish();
}

void Crew::ended(uint32_t rank, const node::ProcessExited& event) {
    Rank& one = ranks_[rank];
    if (one.end || (event.process && one.process && !(event.process == one.process)))
        return;
    one.end = event;
    ends_.push_back(rank);
    if (ends_.size() == 1 && (expects_end_ || event.clean))
        hands_.later(kEndTime, [this] { end_rest(); });
    else if (!expects_end_ && !event.clean)
        end_rest();
    if (ends_.size() == 1)
        hands_.later(expects_end_ || event.clean ? kEndTime + kLingering : kLingering,
                     [this] { tell_lingering(); });
    finish();
}

void Crew::end_rest() {
    for (uint32_t rank = 0; rank < size() && !over_; ++rank)
        if (ranks_[rank].lives())
            hands_.end(rank, ranks_[rank].process);
}

// From here on the node's own deadline runs, and ends in words that an operator can act on.
void Crew::tell_lingering() {
    if (over_ || !told_started_ || std::exchange(told_lingering_, true))
        return;
    std::string left;
    for (uint32_t rank = 0; rank < size(); ++rank)
        if (ranks_[rank].lives())
            left += (left.empty() ? "" : ", ") + who(rank);
    hands_.tell(node::LeaderExited{name_, ranks_.front().process, words_of_end(cause()), left});
}

uint32_t Crew::cause() const {
    for (uint32_t rank : ends_)
        if (!ranks_[rank].says_lost && ranks_[rank].end->description != kLostExit)
            return rank;
    return ends_.front();
}

std::string Crew::words_of_end(uint32_t rank) const {
    const Rank& one = ranks_[rank];
    return who(rank) + ": " + one.end->description +
           (one.failure.empty() ? "" : " (" + one.failure + ")");
}

void Crew::finish() {
    if (over_ || !std::ranges::all_of(ranks_, [](const Rank& one) {
            return one.begun && (one.failed || one.end.has_value());
        }))
        return;
    over_ = true;
    hands_.over();
    if (start_error_)
        return hands_.tell(node::ProcessStartFailed{name_, *start_error_});
    node::ProcessExited all;
    all.instance = name_;
    all.process = ranks_.front().process;
    all.clean = std::ranges::all_of(ranks_, [](const Rank& one) { return one.end->clean; });
    const uint32_t first = cause();
    all.description = all.clean ? ranks_.front().end->description
                                : words_of_end(first) + "; all ranks end with it";
    all.log_path = hands_.log_of(all.clean ? 0 : first);
    hands_.tell(std::move(all));
}

bool Crew::is_connected() const {
    return std::ranges::all_of(ranks_, [](const Rank& one) { return one.session.has_value(); });
}

void Crew::opened(uint32_t rank, const node::SessionOpened& event) {
    Rank& one = ranks_[rank];
    if (!one.process)
        one.process = event.process;
    one.session = event;
    one.told = false;
    renew_told();
    join_sessions();
}

// Not before the one that was lost is back: the connection of one that dies closes, too, and then
// the others have more to say than where they are.
void Crew::renew_told() {
    for (uint32_t rank = 0; rank < size() && !told_open_ && !over_; ++rank)
        if (ranks_[rank].session && std::exchange(ranks_[rank].told, false)) {
            ranks_[rank].session.reset();
            hands_.renew(rank);
        }
}

// Together they hold what the one holds that has most. Where they are held by different things, a
// command was cut off in between: they are taken for where they come from, so that it is sent
// again.
void Crew::join_sessions() {
    if (told_open_ || !told_started_ || !is_connected())
        return;
    told_open_ = true;
    node::SessionOpened all = *ranks_.front().session;
    const bool comes_up = hands_.comes_up();
    for (Rank& one : ranks_) {
        one.told = true;
        all.grant_bytes = std::max(all.grant_bytes, one.session->grant_bytes);
        // Rank 0 alone has a socket to stand by for.
        if (all.held != node::EngineHeld::kStandby)
            all.held = comes_up ? std::max(all.held, one.session->held)
                                : std::min(all.held, one.session->held);
    }
    hands_.tell(std::move(all));
    if (auto kept = std::exchange(kept_, std::nullopt); kept && told_open_ && !over_)
        hands_.tell(std::move(*kept));
}

void Crew::closed(uint32_t rank) {
    ranks_[rank].session.reset();
    asked_.clear();
    if (std::exchange(told_open_, false))
        hands_.tell(node::SessionClosed{name_});
}

void Crew::changed(uint32_t rank, node::EngineStateChanged event) {
    Rank& one = ranks_[rank];
    if (!one.session)
        return; // of an earlier process
    for (const auto& [name, ms] : event.phases)
        one.phases[name] = ms;
    if (!event.weights.empty())
        one.weights = event.weights;
    if (event.reason == kLostReason) {
        one.says_lost = true;
        return; // the one that is gone is the cause
    }
    const bool failed = event.state == node::EngineState::kFailed;
    if (failed)
        one.failure = event.reason + ": " + event.message;
    if (rank == 0 && event.state == node::EngineState::kSucceeded)
        expects_end_ = true;
    if (rank > 0) {
        if (!failed)
            return;
        event.message = with_rank(rank, event.message);
        event.endpoint.clear();
        event.weights.clear();
        event.phases.clear();
    }
    if (told_open_) {
        if (failed)
            one.failure.clear(); // told
        hands_.tell(std::move(event));
    } else if (rank == 0) {
        kept_ = std::move(event);
    }
}

void Crew::asked(const node::SendCommand& command) {
    if (command.kind == node::CommandKind::kStop)
        expects_end_ = true;
    asked_.push_back({command.command, asked_of(command.kind), {}});
    if (asked_.size() > kCommandsMax)
        asked_.pop_front();
}

// Done when all have done it: after the slowest of them, and of each phase its time. All have the
// same grant; what they keep in host memory adds up.
void Crew::answered(uint32_t rank, const node::CommandDone& event) {
    const auto found = std::ranges::find(asked_, event.command, &Asked::id);
    if (found == asked_.end() || rank >= found->of)
        return;
    found->answers[rank] = event;
    if (found->answers.size() < found->of)
        return;
    const std::map<uint32_t, node::CommandDone> answers = std::move(found->answers);
    const bool alone = found->of == 1;
    asked_.erase(found);
    node::CommandDone all;
    all.instance = name_;
    all.command = event.command;
    for (const auto& [one, answer] : answers) {
        if (answer.error && !all.error) {
            all.error = answer.error;
            if (!alone)
                all.error->message = with_rank(one, answer.error->message);
        }
        all.grant_bytes = std::max(all.grant_bytes, answer.grant_bytes);
        all.host_bytes += answer.host_bytes;
        all.saved_bytes += answer.saved_bytes;
        all.moved_bytes += answer.moved_bytes;
        for (const auto& [name, ms] : answer.phases)
            all.phases[name] = std::max(all.phases[name], ms);
    }
    hands_.tell(std::move(all));
}

} // namespace berth
