// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/mps_control.h"

#include "base/process.h"
#include "base/unique_fd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr int kAnswerMs = 5000;
constexpr size_t kAnswerBytesMax = size_t{64} << 10;

std::string text_of(int fd) {
    std::string text(kAnswerBytesMax, '\0');
    const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
        text.pop_back();
    return text;
}

Error refusal(const std::string& command, std::string_view why) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("the control daemon of CUDA MPS was asked '{}' and {}", command, why),
                 "MpsRefused", 0};
}

// One command, as its users type it: on standard input.
Result<std::string> ask(const std::string& pipe_directory, const std::string& command,
                        const std::string& program) {
    UniqueFd answer(::memfd_create("berth-mps-answer", MFD_CLOEXEC));
    if (!answer)
        return fail_errno("memfd_create");
    SpawnOptions options;
    options.command = {"sh", "-c", "printf '%s\\n' \"$1\" | \"$2\"", "sh", command, program};
    options.environment["CUDA_MPS_PIPE_DIRECTORY"] = pipe_directory;
    options.log_path = fmt::format("/proc/self/fd/{}", answer.get());
    BERTH_ASSIGN(Process process, Process::spawn(options));
    pollfd ended{process.pidfd(), POLLIN, 0};
    int ready = 0;
    do {
        ready = ::poll(&ended, 1, kAnswerMs);
    } while (ready < 0 && errno == EINTR);
    if (ready != 1) {
        (void)process.signal_group(SIGKILL);
        (void)::poll(&ended, 1, kAnswerMs);
        (void)process.try_wait();
        return fail(refusal(command, fmt::format("has not answered within {} ms", kAnswerMs)));
    }
    const int status = process.try_wait().value_or(0);
    std::string text = text_of(answer.get());
    if (status != 0)
        return fail(
            refusal(command, fmt::format("nvidia-cuda-mps-control ended with {}{}{}",
                                         describe_exit(status), text.empty() ? "" : ": ", text)));
    return text;
}

std::vector<int> pids_in(std::string_view text) {
    std::vector<int> pids;
    for (size_t at = 0; at < text.size();) {
        int pid = 0;
        auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), pid);
        if (error == std::errc{})
            pids.push_back(pid);
        at = std::max(at + 1, static_cast<size_t>(end - text.data()));
    }
    return pids;
}

Result<std::vector<int>> clients_of(int server, const std::string& pipe_directory,
                                    const std::string& program) {
    BERTH_ASSIGN(const std::string clients,
                 ask(pipe_directory, fmt::format("get_client_list {}", server), program));
    return pids_in(clients);
}

} // namespace

// It leaves its pid beside its pipes; the number may be another's after its end.
std::optional<int> mps_daemon_pid(const std::string& pipe_directory) {
    auto text = read_file(pipe_directory + "/nvidia-cuda-mps-control.pid", 64);
    if (!text)
        return std::nullopt;
    const std::vector<int> pids = pids_in(*text);
    if (pids.empty())
        return std::nullopt;
    auto name = read_file(fmt::format("/proc/{}/comm", pids.front()), 64);
    if (!name || !name->starts_with("nvidia-cuda-mps"))
        return std::nullopt;
    return pids.front();
}

Result<std::vector<int>> mps_servers(const std::string& pipe_directory,
                                     const std::string& program) {
    BERTH_ASSIGN(const std::string servers, ask(pipe_directory, "get_server_list", program));
    return pids_in(servers);
}

Result<bool> quit_mps_unless_used(const std::string& pipe_directory, const std::string& program) {
    BERTH_ASSIGN(const std::vector<int> servers, mps_servers(pipe_directory, program));
    for (int server : servers) {
        BERTH_ASSIGN(const std::vector<int> clients, clients_of(server, pipe_directory, program));
        if (!clients.empty())
            return false;
    }
    BERTH_TRY(ask(pipe_directory, "quit", program));
    return true;
}

Status release_mps_clients(const std::string& pipe_directory, const std::vector<int>& pids) {
    if (pipe_directory.empty() || pids.empty() || !mps_daemon_pid(pipe_directory))
        return {};
    BERTH_ASSIGN(const std::vector<int> servers, mps_servers(pipe_directory, kMpsControl));
    for (int server : servers) {
        BERTH_ASSIGN(const std::vector<int> clients,
                     clients_of(server, pipe_directory, kMpsControl));
        for (int client : clients) {
            if (std::find(pids.begin(), pids.end(), client) == pids.end())
                continue;
            const std::string command = fmt::format("terminate_client {} {}", server, client);
            BERTH_ASSIGN(std::string said, ask(pipe_directory, command, kMpsControl));
            // It has no words when it has done so; its exit status is 0 either way.
            if (std::any_of(said.begin(), said.end(),
                            [](unsigned char c) { return std::isalpha(c) != 0; }))
                return fail(refusal(command, "has answered: " + said));
        }
    }
    return {};
}

} // namespace berth
