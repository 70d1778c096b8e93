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
constexpr std::chrono::seconds kReadyMax{60};
constexpr int kEndMs = 5000;

constexpr std::string_view kNode = R"(apiVersion: berth/v1
kind: Node
metadata: {{name: bench}}
spec:
  socket: {0}/run/berthd.sock
  stateDir: {0}/state
  devices: {{host: [{{name: host-0, memory: 64Gi}}]}}
  policies: [policies.yaml]
)";
constexpr std::string_view kModel = R"(apiVersion: berth/v1
kind: Model
metadata: {{name: model}}
spec: {{path: {0}/model}}
)";
constexpr std::string_view kInstance = R"(---
apiVersion: berth/v1
kind: Instance
metadata: {{name: {0}}}
spec:
  model: model
  priorityClassName: batch
  resources: {{requests: {{memory: 16Mi}}, limits: {{memory: 16Mi}}}}
  engine: {{driver: berth, command: [{1}/berth, bench, idle-engine]}}
)";
// Of a decoder that nobody knows: one tensor is all that it takes.
constexpr std::string_view kConfig = R"({"architectures": ["Bench"], "model_type": "bench"})";
constexpr std::string_view kTensor =
    R"({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})";

Status write_text(const std::string& path, std::string_view text) {
    std::ofstream file(path, std::ios::binary);
    file << text << std::flush;
    return file ? Status() : fail_errno(fmt::format("writing {}", path));
}

// The file's head: the header's length in eight bytes, lowest first; the header; the data.
std::string checkpoint_bytes() {
    std::string header(kTensor);
    header.append((8 - header.size() % 8) % 8, ' ');
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    return bytes + header + std::string(16, '\0');
}

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

} // namespace

OwnNode::OwnNode(std::string folder, std::vector<std::string> instances)
    : folder_(std::move(folder)), admin_socket_(folder_ + "/run/admin.sock"),
      client_("unix:" + admin_socket_), instances_(std::move(instances)) {}

Result<std::unique_ptr<OwnNode>> OwnNode::start(const std::string& programs, size_t engines) {
    std::string folder = (fs::temp_directory_path() / "berth-bench-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr)
        return fail_errno(fmt::format("making the folder {}", folder));
    std::vector<std::string> names;
    for (size_t n = 0; n < engines; ++n)
        names.push_back(fmt::format("i{:02}", n));
    std::unique_ptr<OwnNode> node(new OwnNode(folder, std::move(names)));
    BERTH_TRY(node->write_files(programs));
    SpawnOptions how;
    how.command = {programs + "/berthd", "--config", folder + "/node.yaml"};
    how.log_path = folder + "/berthd.log";
    how.ends_with_parent = true;
    BERTH_ASSIGN(node->daemon_, Process::spawn(how));
    BERTH_TRY(node->wait_until_all_run());
    return node;
}

Status OwnNode::write_files(const std::string& programs) const {
    std::error_code error;
    fs::create_directory(folder_ + "/model", error);
    std::string policies = fmt::format(kModel, folder_);
    for (const std::string& name : instances_)
        policies += fmt::format(kInstance, name, programs);
    BERTH_TRY(write_text(folder_ + "/model/config.json", kConfig));
    BERTH_TRY(write_text(folder_ + "/model/model.safetensors", checkpoint_bytes()));
    BERTH_TRY(write_text(folder_ + "/node.yaml", fmt::format(kNode, folder_)));
    return write_text(folder_ + "/policies.yaml", policies);
}

Error OwnNode::explained(std::string words) const {
    std::ifstream file(folder_ + "/berthd.log");
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
        if (Clock::now() - began > kReadyMax)
            return fail(explained(waits_for));
        auto reply = client_.get("/v1/instances");
        if (!reply)
            continue;
        BERTH_ASSIGN(json::array items, items_of(*reply));
        bool all = items.size() == instances_.size();
        for (const json::value& item : items)
            if (text_at(item.get_object(), "state") != "Running") {
                all = false;
                waits_for = fmt::format("instance {} is {}: {}", text_at(item.get_object(), "name"),
                                        text_at(item.get_object(), "state"),
                                        text_at(item.get_object(), "message"));
            }
        if (all)
            return {};
    }
}

// Engines end with their connection; the keeper would live on.
OwnNode::~OwnNode() {
    Process keeper;
    if (auto node = client_.get("/v1/node"); node && node->is_object())
        if (const auto* told = node->get_object().if_contains("keeper");
            told != nullptr && told->is_object())
            if (auto id = process_id(static_cast<int>(number_at(told->get_object(), "pid"))))
                if (auto adopted = Process::adopt(*id))
                    keeper = std::move(*adopted);
    end_process(daemon_, SIGTERM);
    end_process(keeper, SIGTERM);
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
}

} // namespace berth::cli::bench
