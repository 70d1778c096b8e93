// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/cli/admin_client.h"

#include <memory>
#include <string>
#include <vector>

namespace berth::cli::bench {

// A berthd of the bench's own, in a folder of its own: a host device, a model of a few bytes, and
// engines that do nothing but obey (idle_engine.cpp). Its end takes all of it away again. Blocks;
// one thread.
class OwnNode {
  public:
    // `programs`: the folder with berth, berthd, berth-loader and berth-keeper. Returns once every
    // engine runs.
    static Result<std::unique_ptr<OwnNode>> start(const std::string& programs, size_t engines);
    OwnNode(const OwnNode&) = delete;
    OwnNode& operator=(const OwnNode&) = delete;
    ~OwnNode();

    const AdminClient& client() const { return client_; }
    const std::string& admin_socket() const { return admin_socket_; }
    std::string folder() const { return folder_; }
    const std::vector<std::string>& instances() const { return instances_; }
    int pid() const { return daemon_.id().pid; }

  private:
    OwnNode(std::string folder, std::vector<std::string> instances);
    Status write_files(const std::string& programs) const;
    Status wait_until_all_run();
    Error explained(std::string words) const;

    std::string folder_;
    std::string admin_socket_;
    AdminClient client_;
    std::vector<std::string> instances_;
    Process daemon_;
};

} // namespace berth::cli::bench
