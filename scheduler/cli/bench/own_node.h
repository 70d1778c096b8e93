// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/cli/admin_client.h"

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace berth::cli::bench {

// What a node of the bench's own is made of. Its folder is made by OwnNode::make_folder() and holds
// the documents, policies.yaml.
struct NodePlan {
    std::string programs; // the folder with berth, berthd, berth-loader and berth-keeper
    std::string folder;
    std::string devices = "{host: [{name: host-0, memory: 64Gi}]}"; // as a Node document has them
    std::vector<std::string> instances;                             // that must run
    std::chrono::seconds ready_max{60};
};

// A berthd of the bench's own, in a folder of its own. Its end takes all of it away again: engines,
// keeper and folder. Blocks; one thread.
class OwnNode {
  public:
    static Result<std::string> make_folder();
    // Returns once every instance runs. The folder is the node's from here on, also on failure.
    static Result<std::unique_ptr<OwnNode>> start(NodePlan plan);
    // SIGKILL to berthd, and another one in its place. Returns once every instance runs there.
    Status restart();
    OwnNode(const OwnNode&) = delete;
    OwnNode& operator=(const OwnNode&) = delete;
    ~OwnNode();

    const AdminClient& client() const { return client_; }
    const std::string& admin_socket() const { return admin_socket_; }
    const std::string& folder() const { return plan_.folder; }
    const std::vector<std::string>& instances() const { return plan_.instances; }
    int pid() const { return daemon_.id().pid; }

  private:
    explicit OwnNode(NodePlan plan);
    Status spawn();
    Status wait_until_all_run();
    Error explained(std::string words) const;
    std::vector<Process> engines() const;
    Process keeper() const;

    NodePlan plan_;
    std::string admin_socket_;
    AdminClient client_;
    Process daemon_;
};

Status write_text(const std::string& path, std::string_view text);

} // namespace berth::cli::bench
