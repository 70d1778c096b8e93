// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/own_node.h"

#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <poll.h>

namespace berth::cli::bench {

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{20};
constexpr int kEndMs = 5000;

constexpr std::string_view kNode = R"(apiVersion: berth/v1
kind: Node
metadata: {{name: bench}}
spec:
  socket: {0}/run/berthd.sock
  stateDir: {0}/state
  devices: {1}
  policies: [policies.yaml]
)";

void end_process(Process& process, int signal) {
    if (!process || !process.signal(signal))
        return;
    pollfd ended{process.pidfd(), POLLIN, 0};
    if (::poll(&ended, 1, kEndMs) <= 0) {
        (void)process.signal(SIGKILL);
        (void)::poll(&ended, 1, kEndMs);
    }
    (void)process.try_wait();
}

// Nothing where there is none (any more).
Process adopted(uint64_t pid) {
    if (auto id = process_id(static_cast<int>(pid)))
        if (auto process = Process::adopt(*id))
            return std::move(*process);
    return {};
}

} // namespace

Status write_text(const std::string& path, std::string_view text) {
    std::ofstream file(path, std::ios::binary);
    file << text << std::flush;
    return file ? Status() : fail_errno(fmt::format("writing {}", path));
}

OwnNode::OwnNode(NodePlan plan)
    : plan_(std::move(plan)), admin_socket_(plan_.folder + "/run/admin.sock"),
      client_("unix:" + admin_socket_) {}

Result<std::string> OwnNode::make_folder() {
    std::string folder = (fs::temp_directory_path() / "berth-bench-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr)
        return fail_errno(fmt::format("making the folder {}", folder));
    return folder;
}

Result<std::unique_ptr<OwnNode>> OwnNode::start(NodePlan plan) {
    std::unique_ptr<OwnNode> node(new OwnNode(std::move(plan)));
    const NodePlan& of = node->plan_;
    BERTH_TRY(write_text(of.folder + "/node.yaml", fmt::format(kNode, of.folder, of.devices)));
    BERTH_TRY(node->spawn());
    BERTH_TRY(node->wait_until_all_run());
    return node;
}

Status OwnNode::spawn() {
    SpawnOptions how;
    how.command = {plan_.programs + "/berthd", "--config", plan_.folder + "/node.yaml"};
    how.log_path = plan_.folder + "/berthd.log";
    how.ends_with_parent = true;
    BERTH_ASSIGN(daemon_, Process::spawn(how));
    return {};
}

Status OwnNode::restart() {
    end_process(daemon_, SIGKILL);
    BERTH_TRY(spawn());
    return wait_until_all_run();
}

Error OwnNode::explained(std::string words) const {
    std::ifstream file(plan_.folder + "/berthd.log");
    std::string line;
    std::string last;
    while (std::getline(file, line))
        last = line;
    return Error{ErrorCode::kUnavailable,
                 fmt::format("the bench's own node: {}; the last line of its log: {}", words, last),
                 "BenchNode", 0};
}

Status OwnNode::wait_until_all_run() {
    const auto began = Clock::now();
    for (std::string waits_for = "it does not answer";; pause_between_looks(kLookEvery)) {
        if (auto status = daemon_.try_wait())
            return fail(explained("berthd has " + describe_exit(*status)));
        if (Clock::now() - began > plan_.ready_max)
            return fail(explained(waits_for));
        auto reply = client_.get("/v1/instances");
        if (!reply)
            continue;
        BERTH_ASSIGN(json::array items, items_of(*reply));
        bool all = items.size() == plan_.instances.size();
        for (const json::value& item : items) {
            const std::string state = text_at(item.get_object(), "state");
            if (state == "Running")
                continue;
            all = false;
            waits_for = fmt::format("instance {} is {}: {}", text_at(item.get_object(), "name"),
                                    state, text_at(item.get_object(), "message"));
            if (state == "Failed")
                return fail(explained(waits_for));
        }
        if (all)
            return {};
    }
}

std::vector<Process> OwnNode::engines() const {
    std::vector<Process> found;
    auto reply = client_.get("/v1/instances");
    auto items = reply ? items_of(*reply) : Result<json::array>(json::array());
    if (items)
        for (const json::value& item : *items)
            if (const uint64_t pid = number_at(item.get_object(), "pid"); pid != 0)
                found.push_back(adopted(pid));
    return found;
}

Process OwnNode::keeper() const {
    if (auto node = client_.get("/v1/node"); node && node->is_object())
        if (const auto* told = node->get_object().if_contains("keeper");
            told != nullptr && told->is_object())
            return adopted(number_at(told->get_object(), "pid"));
    return {};
}

// Engines and the keeper would outlive their berthd: that is what they are made for.
OwnNode::~OwnNode() {
    std::vector<Process> left = engines();
    left.push_back(keeper());
    end_process(daemon_, SIGTERM);
    for (Process& process : left)
        end_process(process, SIGTERM);
    std::error_code ignored;
    fs::remove_all(plan_.folder, ignored);
}

} // namespace berth::cli::bench
