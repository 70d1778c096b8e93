// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cache/keep/descriptor_store.h"

#include <string>
#include <vector>

namespace berth {

// A connection to the keeper. Blocks up to the timeout in each call: use it on a worker thread, one
// at a time. After a failed exchange (Unavailable, DeadlineExceeded, Corrupt) the connection is
// closed and every later call is Unavailable: connect again, or ensure_keeper().
class KeeperClient final : public DescriptorStore {
  public:
    KeeperClient() = default;
    static Result<KeeperClient> connect(const std::string& socket,
                                        Nanoseconds timeout = std::chrono::seconds(5));

    Status put(const std::string& key, const std::string& meta,
               const std::vector<int>& fds) override;
    Result<KeptEntry> get(const std::string& key) override;
    Result<std::vector<KeeperEntry>> list() override;
    Status drop(const std::string& key) override;
    Result<KeeperInfo> ping() override;

    explicit operator bool() const { return static_cast<bool>(socket_); }

  private:
    struct Reply;
    Result<Reply> exchange(const std::string& fields, const std::vector<int>& fds);
    Result<Reply> receive_reply(uint64_t id);

    UniqueFd socket_;
    Nanoseconds timeout_{};
    uint64_t last_id_ = 0;
};

struct KeeperStart {
    std::string directory; // the runtime folder: the socket is <directory>/keeper.sock
    std::string log_path;  // where a started keeper logs; empty: this process's stderr
    std::string program;   // empty: berth-keeper beside this program
    Nanoseconds timeout = std::chrono::seconds(10);
};
struct RunningKeeper {
    KeeperClient client;
    Process process;      // its pidfd becomes readable when the keeper ends; try_wait() reaps it
    bool started = false; // by this call: it holds nothing yet
};
// The keeper of a folder: the one that answers there, else a new one in a session of its own. One
// that has the socket and does not answer is an error, since it may hold descriptors.
Result<RunningKeeper> ensure_keeper(const KeeperStart& start);

} // namespace berth
