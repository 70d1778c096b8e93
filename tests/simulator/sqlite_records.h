// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/records.h"
#include "scheduler/store/store.h"

#include <atomic>
#include <memory>
#include <string>

namespace berth::simulate {

// Records that go through scheduler/act's mapping into a real SQLite database in a folder of its
// own, and are read back from the file by a store that was opened anew. What comes back is compared
// with the records in memory, which then are what the simulated berthd gets: ages depend on the
// real clock. One thread.
class SqliteRecords : public Records {
  public:
    SqliteRecords();
    ~SqliteRecords() override;
    void write(const std::vector<node::Action>& actions,
               const std::map<node::InstanceName, std::string>& tokens,
               node::TimePoint now) override;
    void keeper_seen(uint64_t keeper) override;
    void forget_weights(const node::WeightSetId& set, const node::DeviceId& device) override;
    Durable read(node::TimePoint now, std::string& wrong) override;

  private:
    void post(std::vector<StoreWrite> batch);
    StoredState open();

    std::string folder_;
    std::unique_ptr<Store> store_;
    std::string failure_;
    std::atomic<bool> failed_{false};
};

} // namespace berth::simulate
