// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/attach_desk.h"
#include "scheduler/act/crew_book.h"
#include "scheduler/act/engine_desk.h"
#include "scheduler/act/keeper_link.h"
#include "scheduler/act/loader_runs.h"
#include "scheduler/act/mps_daemon.h"
#include "scheduler/act/node_context.h"
#include "scheduler/act/process_table.h"
#include "scheduler/act/publish_desk.h"
#include "scheduler/act/service_sockets.h"
#include "scheduler/act/start_book.h"
#include "scheduler/act/tier_runs.h"
#include "scheduler/act/timers.h"
#include "scheduler/act/wall_clock_teller.h"
#include "scheduler/act/workers.h"
#include "scheduler/act/zygote_link.h"

#include <memory>
#include <string>
#include <vector>

namespace berth {

class Manifest;

// What a new daemon found of the old one's.
struct Recovery {
    size_t weight_sets = 0;
    uint64_t weight_bytes = 0;
    size_t instances = 0;
    size_t instances_alive = 0;
    size_t operations = 0;
    size_t copies = 0; // in the tiers below the devices
};

// Carries out what was decided: loaders, descriptors, processes, commands, timers, records. Every
// outcome goes back as an event.
//
// Thread rule: the decision thread; what blocks goes to its workers or to the keeper's. The context
// and the store outlive it. Dropping it ends no engine and no keeper.
class NodeActor final : public DecisionLoop::Actor {
  public:
    NodeActor(NodeContext& context, Store& store, PeerPolicy policy);
    ~NodeActor() override;

    // Before the io_context runs; blocks on the keeper. Adopts what the keeper holds, and the
    // instances and operations of the records. The devices must be in the context already.
    Result<Recovery> recover(const std::vector<node::DeviceSeen>& devices, StoredState stored);
    // After the documents were applied: engines may come.
    Status listen();
    // Engines of these documents will be started, now or after an eviction.
    void expect_engines(const policies::Documents& documents);
    // Opens the sockets that the documents ask for, and closes what none asks for.
    void follow_services();
    // No more sessions, timers or outcomes.
    void stop();

    EngineDesk& engines() { return engines_; }
    KeeperLink& keeper() { return keeper_; }
    Workers& workers() { return workers_; }
    ZygoteLink& zygote() { return zygote_; }
    const CrewBook& crews() const { return crews_; }

    void announce(const node::Action& action) override;
    std::optional<StoreWrite> record_of(const node::Action& action) override;
    void carry_out(const node::Action& action, const Status& recorded) override;

  private:
    struct ByKind;
    struct Starting {
        node::InstanceName instance;
        uint64_t number = 0; // of the start
        node::InstanceName rank_name;
        std::string token_sha256;
        SpawnOptions options;
        ServiceBook::Shared service; // whose descriptors it inherits
    };
    void start_process(const node::StartProcess& start, const Status& recorded);
    Result<Starting> prepare(const node::StartProcess& start, const LaunchedRank& place,
                             const std::string& token, bool on_gpu);
    Status pass_socket(const node::StartProcess& start, Starting& starting);
    void launch(const Starting& starting);
    void execute(const Starting& starting, const std::string& why);
    bool is_wanted(const node::InstanceName& instance, uint64_t number,
                   const node::InstanceName& rank_name);
    void withdraw(const node::InstanceName& instance);
    void keep_service(std::string key, std::string meta, std::vector<UniqueFd> fds);
    void note_requests(const node::NoteRequests& note);
    void forget_requests(const node::ForgetRequests& forget);
    bool lives_there(const std::string& instance) const;
    void follow_sharing();
    void show_mps();
    void mps_changed();
    void share_by_mps(const node::StartProcess& start, SpawnOptions& options) const;
    void started(const Starting& starting, const node::ProcessRef& process, std::string why_exec);
    void send_command(const node::SendCommand& command, const Status& recorded);
    void keep_weights(const node::KeepWeights& keep);
    void drop_weights(const node::DropWeights& drop);
    void persist_pin(const node::WeightSet& set);
    void confirm_bytes(const node::ConfirmBytes& confirm);
    void signal(const node::InstanceName& instance, const node::ProcessRef& process, int number);
    void signal_rank(const node::InstanceName& rank_name, const node::ProcessRef& process,
                     int number);
    void inspect(const node::InspectProcess& asked);
    ProcessTable::Observer process_observer();
    ProcessTable::Care care_of(const node::InstanceName& rank_name) const;
    void operation_done(const node::Operation& operation);
    DecisionRecord remember(const node::Decision& decision);
    void put_set(const ResidentSet& set, KeeperLink::Then then);
    void remember_hash(const std::string& id, const Manifest& manifest);
    void put_gate(const node::DeviceId& device);
    void refill();

    void adopt_entries(std::vector<KeptEntry> entries, const StoredState& stored,
                       Recovery& recovery);
    void adopt_images(const StoredState& stored, Recovery& recovery);
    void adopt_set(KeptEntry entry, const StoredState& stored, Recovery& recovery);
    bool is_same_boot(const StoredState& stored);
    void adopt_lost(const StoredState& stored);
    void adopt_lost(const StoredState& stored, const PlacementRecord& record, bool same_boot,
                    bool same_keeper);
    void record_keeper();
    void recover_instances(const StoredState& stored, Recovery& recovery);
    void recover_operations(const StoredState& stored, Recovery& recovery);
    void adopt_process(node::InstanceRecovered& event);
    void recover_rollouts(const StoredState& stored);
    std::vector<uint32_t> adopt_ranks(node::InstanceRecovered& event);

    NodeContext& context_;
    DecisionLoop loop_;
    Workers workers_;
    KeeperLink keeper_;
    ProcessTable processes_;
    CrewBook crews_;
    ZygoteLink zygote_;
    LoaderRuns loaders_;
    TierRuns tiers_;
    Timers timers_;
    WallClockTeller wall_clock_;
    AttachDesk attach_;
    PublishDesk publish_;
    EngineDesk engines_;
    ServiceBook services_;
    MpsDaemon mps_;
    StartBook starts_;
    size_t keeping_ = 0;                  // sets that the keeper is just given
    std::vector<node::Operation> loaded_; // loads that are done when it has them
};

} // namespace berth
