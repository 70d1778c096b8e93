// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/bench/colocate/options.h"
#include "scheduler/cli/bench/cycles/options.h"

#include <string>
#include <vector>

// `berth bench NAME`: times on a running node, each beside a floor measured in the same run.
namespace berth::cli::bench {

struct Options {
    bool json = false;
    int rounds = 0; // 0: the bench's own number
    std::string instance;
    std::string mode = "Offload";
    std::string model, weights, socket; // what to attach to, and where
    std::string config, berthd, log;    // how to start berthd again
    std::string checkpoint;             // what berth-loader loads
    std::string device = "host-0";      // and where
    std::string memory = "1Gi";         // of a grant
    std::string image_dir;              // where an image is written; empty: beside the checkpoint
    // Of `daemon`: a stretch of reads, and the node under decision.
    double seconds = 5;
    size_t instances = 1000, devices = 16, events = 2000;
    // Of each request of `failover`; `exact`: another text than the undisturbed one is an error.
    uint32_t context_tokens = 500, answer_tokens = 96;
    bool exact = false;
    ColocateOptions colocate;
    CyclesOptions cycles;
    int rounds_or(int fallback) const { return rounds > 0 ? rounds : fallback; }
};

struct Bench {
    std::string name;
    std::string description;
    std::vector<std::string> options; // groups of options beside --json and --rounds
    Status (*run)(const AdminClient&, const Options&);
};
const std::vector<Bench>& all();

Status attach(const AdminClient& client, const Options& options);
Status preempt(const AdminClient& client, const Options& options);
Status start(const AdminClient& client, const Options& options);
Status failover(const AdminClient& client, const Options& options);
Status grant(const AdminClient& client, const Options& options);
Status recover(const AdminClient& client, const Options& options);
Status attach_storm(const AdminClient& client, const Options& options);
Status daemon(const AdminClient& client, const Options& options);
Status colocate(const AdminClient& client, const Options& options);
Status cycles(const AdminClient& client, const Options& options);
Status idle_engine(const AdminClient& client, const Options& options);
Status load_warm(const AdminClient& client, const Options& options);
Status load_image(const AdminClient& client, const Options& options);
Status load_cold(const AdminClient& client, const Options& options);
Status quantise(const AdminClient& client, const Options& options);

} // namespace berth::cli::bench
