// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/protocol/messages.h"
#include "scheduler/cli/bench/bench.h"

#include <fmt/format.h>

#include <cstdlib>
#include <unistd.h>

// An engine without a model: says Ready, reports every second, does at once what it is told, and
// ends with its connection. What berthd costs is what is left. Blocks; one thread.
namespace berth::cli::bench {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kReplyMax{10};
constexpr std::chrono::seconds kReportEvery{1};

Result<std::string> given(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr)
        return fail(
            ErrorCode::kFailedPrecondition,
            fmt::format("{} is not set: berthd starts this engine, for `berth bench daemon`", name),
            "NotAnEngine");
    return std::string(value);
}

Result<UniqueFd> greet() {
    protocol::Hello hello;
    hello.id = 1;
    BERTH_ASSIGN(std::string socket, given("BERTH_SOCKET"));
    BERTH_ASSIGN(hello.instance, given("BERTH_INSTANCE"));
    BERTH_ASSIGN(hello.token, given("BERTH_TOKEN"));
    hello.program = "berth bench";
    hello.pid = static_cast<int>(::getpid());
    BERTH_ASSIGN(UniqueFd fd, connect_packets(socket));
    const auto until = steady_clock::now() + kReplyMax;
    BERTH_TRY(protocol::send(fd.get(), hello, {}, until));
    BERTH_ASSIGN(protocol::Received reply, protocol::receive(fd.get(), until));
    if (const auto* failed = std::get_if<protocol::Failed>(&reply.message))
        return fail(failed->error);
    protocol::State ready;
    ready.state = protocol::EngineState::kReady;
    BERTH_TRY(protocol::send(fd.get(), ready, {}, until));
    return fd;
}

} // namespace

Status idle_engine(const AdminClient&, const Options&) {
    BERTH_ASSIGN(UniqueFd fd, greet());
    protocol::Report report;
    for (auto report_at = steady_clock::now() + kReportEvery;;) {
        auto received = protocol::receive(fd.get(), report_at);
        if (received) {
            const auto* command = std::get_if<protocol::Command>(&received->message);
            if (command == nullptr)
                continue;
            protocol::CommandDone done;
            done.id = command->id;
            BERTH_TRY(protocol::send(fd.get(), done, {}, steady_clock::now() + kReplyMax));
            if (command->kind == protocol::CommandKind::kStop)
                return {};
        } else if (received.error().code == ErrorCode::kDeadlineExceeded) {
            report_at = steady_clock::now() + kReportEvery;
            BERTH_TRY(protocol::send(fd.get(), report, {}, report_at));
        } else {
            return {}; // berthd is gone
        }
    }
}

} // namespace berth::cli::bench
