// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/loader_run.h"

#include "base/process.h"
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/bench/figures.h"

#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace berth::cli::bench {

namespace {

constexpr int kLoadMaxMs = 30 * 60'000;

// A file of this process's own that goes with it.
struct OutputFile {
    OutputFile() {
        std::string name = (std::filesystem::temp_directory_path() / "berth-bench-XXXXXX").string();
        fd = UniqueFd(::mkstemp(name.data()));
        path = name;
    }
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;
    ~OutputFile() { ::unlink(path.c_str()); }
    std::string text() const {
        std::ostringstream all;
        all << std::ifstream(path).rdbuf();
        return all.str();
    }
    UniqueFd fd;
    std::string path;
};

} // namespace

Result<Loaded> run_loader(const std::vector<std::string>& arguments) {
    OutputFile output;
    SpawnOptions spawn;
    spawn.command = {program_directory() + "/berth-loader", "--json"};
    spawn.command.insert(spawn.command.end(), arguments.begin(), arguments.end());
    spawn.log_path = output.path;
    auto began = Clock::now();
    BERTH_ASSIGN(Process process, Process::spawn(spawn));
    pollfd ended{process.pidfd(), POLLIN, 0};
    if (::poll(&ended, 1, kLoadMaxMs) <= 0) {
        (void)process.signal(SIGKILL);
        return fail(ErrorCode::kDeadlineExceeded, "berth-loader did not end");
    }
    Loaded loaded;
    loaded.wall_ms = milliseconds_since(began);
    std::string text = output.text();
    if (process.try_wait() != 0)
        return fail(ErrorCode::kUnavailable, fmt::format("berth-loader failed: {}", text));
    size_t brace = text.rfind("\n{");
    brace = brace == std::string::npos ? text.find('{') : brace + 1;
    if (brace == std::string::npos)
        return fail(ErrorCode::kCorrupt, "berth-loader printed no outcome");
    BERTH_ASSIGN(json::value outcome,
                 json::parse(std::string_view(text).substr(brace), "berth-loader's outcome"));
    if (!outcome.is_object())
        return fail(ErrorCode::kCorrupt, "berth-loader's outcome is no object");
    loaded.outcome = outcome.get_object();
    loaded.bytes = real_at(loaded.outcome, "bytesRead");
    if (const json::value* phases = loaded.outcome.if_contains("phases");
        phases != nullptr && phases->is_object())
        loaded.transfer_ms = real_at(phases->get_object(), "read");
    if (loaded.transfer_ms <= 0)
        return fail(ErrorCode::kCorrupt, "berth-loader's outcome has no time of its reading");
    return loaded;
}

} // namespace berth::cli::bench
