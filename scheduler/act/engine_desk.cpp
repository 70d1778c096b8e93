// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/engine_desk.h"

#include "base/hash.h"
#include "base/log.h"
#include "engine_shim/protocol/percentiles.h"
#include "scheduler/act/engine_words.h"
#include "scheduler/act/rank_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace berth {

namespace {

// Takes the same time wherever the texts differ first.
bool equal_constant_time(const std::string& a, const std::string& b) {
    if (a.size() != b.size())
        return false;
    unsigned difference = 0;
    for (size_t i = 0; i < a.size(); ++i)
        difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
    return difference == 0;
}

static_assert(protocol::kPercentiles == node::kPercentiles, "a report is read by place");

void take_percentiles(const std::vector<uint64_t>& microseconds, std::array<double, 6>& ms) {
    for (size_t n = 0; n < std::min(microseconds.size(), ms.size()); ++n)
        ms[n] = static_cast<double>(microseconds[n]) / 1e3;
}

} // namespace

EngineDesk::EngineDesk(NodeContext& context, AttachDesk& attach, PublishDesk& publish,
                       ProcessTable& processes, CrewBook& crews, PeerPolicy policy)
    : context_(context), attach_(attach), publish_(publish), processes_(processes), crews_(crews),
      server_(context.io, *this, std::move(policy)) {
    attach_.use(server_);
    publish_.use(server_);
}

void EngineDesk::on_session(SessionId id, const PeerCredentials& peer) {
    Session session;
    session.who.session = id;
    session.who.pid = peer.pid;
    session.who.uid = peer.uid;
    sessions_[id] = std::move(session);
}

void EngineDesk::watch_process(SessionId id, Session& session) {
    if (!std::exchange(session.watched, true))
        session.who.process =
            PeerProcess::watch(context_.io, session.who.pid, [this, id] { process_ended(id); });
}

// The session ends with its process, whoever else holds the socket: by itself where nobody does.
void EngineDesk::process_ended(SessionId id) {
    publish_.process_ended();
    auto found = sessions_.find(id);
    if (found == sessions_.end())
        return;
    auto timer = std::make_unique<boost::asio::steady_timer>(context_.io, kLastWords);
    timer->async_wait([this, id](boost::system::error_code error) {
        if (!error)
            server_.close(id, "its process has ended and left its socket to another");
    });
    found->second.last_words = std::move(timer);
}

void EngineDesk::on_message(SessionId id, protocol::Message message, std::vector<UniqueFd> fds) {
    auto found = sessions_.find(id);
    if (found == sessions_.end())
        return;
    Session& session = found->second;
    if (auto* greeting = std::get_if<protocol::Hello>(&message)) {
        hello(id, session, *greeting);
        const auto instance = context_.state().instances.find(session.who.instance);
        if (!fds.empty() && given_back_ && instance != context_.state().instances.end())
            given_back_(instance->second, std::move(fds));
        return;
    }
    if (!session.greeted) {
        server_.fail_and_close(
            id, 0,
            Error{ErrorCode::kFailedPrecondition, "a session begins with hello", "NoHello", 0});
        return;
    }
    if (!session.who.instance.empty() || std::holds_alternative<protocol::Attach>(message) ||
        std::holds_alternative<protocol::Publish>(message) ||
        std::holds_alternative<protocol::PrivateLoad>(message))
        watch_process(id, session);
    if (auto* request = std::get_if<protocol::Attach>(&message)) {
        attach_.handle(session.who, *request);
        return;
    }
    if (publishing_message(id, session, message, std::move(fds)))
        return;
    engine_message(id, session, std::move(message));
}

void EngineDesk::hello(SessionId id, Session& session, const protocol::Hello& hello) {
    if (session.greeted) {
        server_.fail_and_close(id, hello.id,
                               Error{ErrorCode::kFailedPrecondition,
                                     "hello was said already on this connection", "TwoHellos", 0});
        return;
    }
    if (hello.instance.empty()) {
        welcome_guest(id, session, hello);
        return;
    }
    const auto& instances = context_.state().instances;
    auto found = instances.find(node::InstanceName(hello.instance));
    const std::optional<uint32_t> rank =
        found == instances.end() ? std::nullopt : rank_with(found->second, hello.token);
    // The same words for an unknown name and a wrong token: nothing is to be learnt by trying.
    if (!rank) {
        log::warn("hello refused for instance={} pid={}: its token is not the one given to it",
                  hello.instance, session.who.pid);
        server_.fail_and_close(
            id, hello.id,
            Error{ErrorCode::kPermissionDenied,
                  fmt::format("instance '{}' is not known with that token: an engine that berthd "
                              "did not start connects without a name, as a guest",
                              hello.instance),
                  "WrongToken", 0});
        return;
    }
    hello_instance(id, session, hello, found->second, *rank);
}

// Whose token it is. Those of a crew are known before the node has heard of its processes.
std::optional<uint32_t> EngineDesk::rank_with(const node::Instance& instance,
                                              const std::string& token) const {
    const std::string hash = sha256_hex(token);
    const Crew* crew = crews_.find(instance.name);
    for (uint32_t rank = 0; rank < instance.ranks; ++rank) {
        const std::string known = crew != nullptr && rank < crew->size()
                                      ? crew->token_sha256(rank)
                                      : instance.rank_process(rank).token_sha256;
        if (!known.empty() && equal_constant_time(hash, known))
            return rank;
    }
    return std::nullopt;
}

void EngineDesk::hello_instance(SessionId id, Session& session, const protocol::Hello& hello,
                                const node::Instance& instance, uint32_t rank) {
    const node::InstanceName name = rank_name(instance.name, rank);
    if (auto old = by_name_.find(name); old != by_name_.end()) {
        // It has connected again before the end of its last connection was seen.
        SessionId old_id = old->second;
        by_name_.erase(old);
        server_.close(old_id, "replaced by a newer connection");
        crews_.hear(name, node::SessionClosed{name});
    }
    session.greeted = true;
    session.who.instance = instance.name;
    session.who.rank = rank;
    session.who.holder = name.value;
    by_name_[name] = id;
    int gate_fd = -1;
    protocol::Welcome welcome = welcome_for(instance, rank, hello.id, gate_fd);
    server_.send(id, welcome, gate_fd >= 0 ? std::vector<int>{gate_fd} : std::vector<int>{});
    session.welcome = std::move(welcome);

    node::SessionOpened event;
    event.instance = name;
    event.process.pid = session.who.pid;
    if (auto process = process_id(session.who.pid))
        event.process.start_ticks = process->start_ticks;
    event.program = hello.program;
    event.endpoint = hello.endpoint;
    event.grant_bytes = hello.grant_bytes;
    if (auto state = protocol::engine_state_from(hello.state))
        event.engine_state = engine_state_of(*state);
    if (auto held = node::engine_held_from(hello.held))
        event.held = *held;
    event.generation = hello.generation;
    event.identity = hello.identity;
    event.canary_tokens = hello.canary_tokens;
    // A recovered record may not have known its process.
    if (!processes_.has(name))
        if (auto adopted = processes_.adopt(name, event.process); !adopted)
            log::warn("instance={} pid={}: {}, ignoring", name.value, session.who.pid,
                      adopted.error().message);
    if (instance.ranks > 1 && crews_.find(instance.name) == nullptr)
        (void)crews_.adopt(instance.name, instance.token_sha256, instance.process, instance.others,
                           instance.starts, {});
    crews_.hear(name, std::move(event));
}

void EngineDesk::welcome_guest(SessionId id, Session& session, const protocol::Hello& hello) {
    session.greeted = true;
    session.who.holder = fmt::format("pid {} ({:.64})", session.who.pid,
                                     hello.program.empty() ? "a guest" : hello.program);
    protocol::Welcome welcome;
    welcome.id = hello.id;
    welcome.node = context_.node_name;
    std::vector<int> fds;
    if (!context_.device_order.empty()) {
        const node::DeviceId& device = context_.device_order.front();
        welcome.device = device.value;
        if (auto found = context_.environments.find(device); found != context_.environments.end())
            welcome.device_kind = found->second.device_kind;
        if (const GateFds* gate = context_.gates.find(device))
            fds.push_back(gate->read_only.get());
    }
    server_.send(id, welcome, fds);
}

// Guests and instances alike. No message but sealed carries descriptors: others' are closed here.
bool EngineDesk::publishing_message(SessionId id, const Session& session,
                                    const protocol::Message& message, std::vector<UniqueFd> fds) {
    if (const auto* publish = std::get_if<protocol::Publish>(&message))
        publish_.publish(session.who, *publish);
    else if (const auto* load = std::get_if<protocol::PrivateLoad>(&message))
        load->shared&& attach_.take_back(session.who, *load)
            ? void() // what is resident still is a lease
            : publish_.private_load(session.who, *load);
    else if (const auto* sealed = std::get_if<protocol::Sealed>(&message))
        publish_.sealed(id, *sealed, std::move(fds));
    else if (const auto* release = std::get_if<protocol::Release>(&message))
        publish_.release(session.who, *release);
    else if (const auto* canary = std::get_if<protocol::Canary>(&message))
        publish_.canary(session.who, *canary);
    else
        return false;
    return true;
}

void EngineDesk::engine_message(SessionId id, const Session& session, protocol::Message message) {
    const node::InstanceName name = rank_name(session.who.instance, session.who.rank);
    if (name.empty()) {
        // Guests report too, since they run the same library; nothing is decided by it.
        bool harmless = std::holds_alternative<protocol::State>(message) ||
                        std::holds_alternative<protocol::Report>(message) ||
                        std::holds_alternative<protocol::CommandDone>(message);
        if (!harmless)
            server_.fail_and_close(id, 0,
                                   Error{ErrorCode::kInvalidArgument,
                                         "this message is not an engine's", "WrongMessage", 0});
        return;
    }
    if (auto* state = std::get_if<protocol::State>(&message)) {
        node::EngineStateChanged event;
        event.instance = name;
        event.state = engine_state_of(state->state);
        event.endpoint = state->endpoint;
        event.reason = state->reason;
        event.message = state->message;
        event.phases = state->phases;
        event.grant_bytes = state->grant_bytes;
        event.grant_bytes_least = state->grant_bytes_least;
        event.weights = state->weights;
        event.identity = state->identity;
        event.canary_tokens = state->canary_tokens;
        crews_.hear(name, std::move(event));
    } else if (auto* report = std::get_if<protocol::Report>(&message)) {
        node::EngineReport event;
        event.instance = name;
        event.counters = {report->requests_running,
                          report->requests_waiting,
                          report->requests_done,
                          report->tokens_done,
                          report->steps_done,
                          report->gate_pauses,
                          report->grant_bytes,
                          report->batch_done,
                          report->batch_total,
                          {},
                          {},
                          report->step_ms,
                          report->short_of_memory};
        take_percentiles(report->ttft_us, event.counters.ttft_ms);
        take_percentiles(report->tpot_us, event.counters.tpot_ms);
        crews_.hear(name, std::move(event));
    } else if (auto* done = std::get_if<protocol::CommandDone>(&message)) {
        node::CommandDone event;
        event.instance = name;
        event.command = node::CommandId{done->id};
        event.error = done->error;
        event.grant_bytes = done->grant_bytes;
        event.host_bytes = done->host_bytes;
        event.saved_bytes = done->saved_bytes;
        event.moved_bytes = done->moved_bytes;
        event.phases = done->phases;
        crews_.hear(name, std::move(event));
    } else {
        server_.fail_and_close(id, 0,
                               Error{ErrorCode::kInvalidArgument, "this message is not an engine's",
                                     "WrongMessage", 0});
    }
}

void EngineDesk::command(const node::SendCommand& command) {
    Crew* crew = crews_.find(command.instance);
    const uint32_t ranks = crew == nullptr ? 1 : crew->asked_of(command.kind);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        if (by_name_.contains(rank_name(command.instance, rank)))
            continue;
        node::CommandDone gone;
        gone.instance = command.instance;
        gone.command = command.command;
        gone.error =
            Error{ErrorCode::kUnavailable, "the engine is not connected", "NotConnected", 0};
        context_.post(std::move(gone));
        return;
    }
    if (crew != nullptr)
        crew->asked(command);
    protocol::Command wire;
    wire.id = static_cast<uint64_t>(command.command);
    wire.kind = wire_kind(command.kind);
    wire.grant_bytes = command.grant_bytes;
    wire.grace_ms = command.grace_ms;
    wire.kv = std::string(policies::to_string(command.kv));
    wire.canary = command.canary;
    wire.generation = command.generation;
    wire.hand_over = command.hand_over != node::HandOver::kNo;
    wire.leaves = leaves_of(command.hand_over);
    for (uint32_t rank = 0; rank < ranks; ++rank)
        server_.send(by_name_.at(rank_name(command.instance, rank)), wire);
}

void EngineDesk::renew(const node::InstanceName& rank_name) {
    if (const auto found = by_name_.find(rank_name); found != by_name_.end())
        server_.close(found->second, "another rank has connected anew: say hello again");
}

// A connection closes as a process ends, before the kernel has taken back all that it held: whoever
// stands by need not wait for that.
void EngineDesk::tell_of_death(const Session& session) {
    const auto found = context_.state().instances.find(session.who.instance);
    if (found == context_.state().instances.end())
        return;
    const node::ProcessRef process = found->second.rank_process(session.who.rank).process;
    if (process && session.who.pid == process.pid && is_ending({process.pid, process.start_ticks}))
        crews_.hear(rank_name(session.who.instance, session.who.rank),
                    node::ProcessDying{session.who.instance, process});
}

void EngineDesk::on_session_closed(SessionId id, const std::string& why) {
    auto found = sessions_.find(id);
    if (found == sessions_.end())
        return;
    Session session = std::move(found->second);
    sessions_.erase(found);
    log::debug("session closed id={} holder={}: {}", id, session.who.holder, why);
    attach_.session_closed(id);
    publish_.session_closed(id);
    const node::InstanceName name = rank_name(session.who.instance, session.who.rank);
    auto current = by_name_.find(name);
    if (current != by_name_.end() && current->second == id) {
        by_name_.erase(current);
        crews_.hear(name, node::SessionClosed{session.who.instance});
        tell_of_death(session);
    }
}

} // namespace berth
