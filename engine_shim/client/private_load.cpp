// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/private_load.h"

#include "base/log.h"
#include "base/process.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <poll.h>

namespace berth {

namespace {

constexpr auto kSilenceMax = std::chrono::hours(1); // between two messages of a loader
constexpr auto kSendTimeout = std::chrono::seconds(10);
constexpr int kExitWaitMs = 5000;

Deadline in(Nanoseconds time) {
    return std::chrono::steady_clock::now() + time;
}

// Ends and reaps the loader on every way out.
class LoaderProcess {
  public:
    explicit LoaderProcess(Process process) : process_(std::move(process)) {}
    LoaderProcess(const LoaderProcess&) = delete;
    LoaderProcess& operator=(const LoaderProcess&) = delete;
    ~LoaderProcess() {
        if (ended_)
            return;
        (void)process_.signal_group(SIGKILL);
        (void)wait();
    }
    // The wait status, nothing if it does not end in time.
    std::optional<int> wait() {
        if (!ended_) {
            pollfd waiting{process_.pidfd(), POLLIN, 0};
            (void)::poll(&waiting, 1, kExitWaitMs);
            ended_ = process_.try_wait();
        }
        return ended_;
    }

  private:
    Process process_;
    std::optional<int> ended_;
};

tl::unexpected<Error> no_answer(LoaderProcess& loader, const Error& error) {
    if (error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kIo)
        if (auto status = loader.wait())
            return fail(ErrorCode::kUnavailable,
                        fmt::format("berth-loader ended ({}) before the weights were loaded; its "
                                    "own output says more",
                                    describe_exit(*status)),
                        "LoaderDied");
    return fail(error);
}

Result<protocol::Received> next_message(int socket, LoaderProcess& loader) {
    auto received = protocol::receive(socket, in(kSilenceMax));
    if (!received)
        return no_answer(loader, received.error());
    if (auto* failed = std::get_if<protocol::Failed>(&received->message))
        return fail(std::move(failed->error));
    return received;
}

} // namespace

Result<PrivateSet> load_privately(const PrivateLoadRequest& request,
                                  const ProgressCallback& progress) {
    const char* given = std::getenv("BERTH_LOADER");
    std::string program =
        given != nullptr && *given != '\0' ? given : program_directory() + "/berth-loader";
    BERTH_ASSIGN(auto ends, packet_pair());
    SpawnOptions spawn;
    spawn.command = {program,
                     "--model",
                     request.model_path,
                     "--device",
                     request.device,
                     "--environment",
                     protocol::environment_json(request.environment),
                     "--control-fd",
                     "3"};
    if (!request.dtype.empty() && request.dtype != "auto")
        spawn.command.insert(spawn.command.end(), {"--dtype", request.dtype});
    if (!request.quantization.empty() && request.quantization != "none")
        spawn.command.insert(spawn.command.end(), {"--quantization", request.quantization});
    if (request.ranks > 1)
        spawn.command.insert(spawn.command.end(), {"--tp", std::to_string(request.ranks), "--ranks",
                                                   std::to_string(request.rank)});
    spawn.inherit_fds = {{ends.second.get(), 3}};
    auto process = Process::spawn(spawn);
    if (!process)
        return fail_in("starting berth-loader (BERTH_LOADER names it, else it must lie beside this "
                       "program)",
                       process.error());
    LoaderProcess loader(std::move(*process));
    ends.second.reset();
    int socket = ends.first.get();

    for (;;) {
        BERTH_ASSIGN(protocol::Received received, next_message(socket, loader));
        if (const auto* planned = std::get_if<protocol::Planned>(&received.message)) {
            if (Status go = request.may_go ? request.may_go(*planned) : Status(); !go) {
                (void)protocol::send(socket, protocol::Failed{planned->id, go.error()}, {},
                                     in(kSendTimeout));
                (void)loader.wait();
                return fail(go.error());
            }
            if (auto sent = protocol::send(socket, protocol::Go{}, {}, in(kSendTimeout)); !sent)
                return no_answer(loader, sent.error());
        } else if (auto* step = std::get_if<protocol::Progress>(&received.message)) {
            if (progress)
                progress(*step);
        } else if (auto* sealed = std::get_if<protocol::Sealed>(&received.message)) {
            (void)protocol::send(socket, protocol::Kept{}, {}, in(kSendTimeout));
            auto status = loader.wait();
            if (!status || *status != 0)
                log::warn("berth-loader handed the weights over and then did not end well ({}), "
                          "ignoring it",
                          status ? describe_exit(*status) : "still running");
            return PrivateSet{std::move(sealed->fingerprint), std::move(sealed->segment_bytes),
                              std::move(received.fds)};
        } else {
            return fail(ErrorCode::kCorrupt,
                        fmt::format("berth-loader sent an unexpected message: {:.200}",
                                    encode(received.message)));
        }
    }
}

} // namespace berth
