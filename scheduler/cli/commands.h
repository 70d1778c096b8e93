// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/weights/parallel.h"
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/output.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

// What each command does, apart from how its words are read (arguments.cpp). Each blocks until it
// is done and prints on stdout; its error is printed by main. One thread.
namespace berth::cli {

struct Session {
    AdminClient client;
    Format format = Format::kTable;
};

Status show_status(const Session& session);
Status get(const Session& session, const std::string& kind, const std::string& name);
Status describe(const Session& session, const std::string& kind, const std::string& name);
Status doctor(const Session& session);

struct EventOptions {
    int64_t since = 0;
    bool follow = false;
};
Status events(const Session& session, const EventOptions& options);
// Why an instance is where it is, or what a decision (by its id) weighed.
Status explain(const Session& session, const std::string& name);
struct TopOptions {
    bool once = false;
    std::chrono::milliseconds interval{1'000};
};
// The node, drawn again and again until q, Ctrl-C or SIGTERM; one frame where stdout is no
// terminal.
Status top(const Session& session, const TopOptions& options);

struct ChangeOptions {
    std::string name;
    std::string mode; // empty: the policy's first
    std::string grace;
    std::string grant; // Shrink
    std::string reason;
    std::string request_id;
    std::string device;  // of a load; of a drain
    std::string timeout; // of a drain
    std::string dtype;
    std::string quantization;
    std::string if_match; // delete: the tag of its document
    bool wait = false;
    bool dry_run = false;
    bool drop = false; // evict
    bool deep = false; // verify
};
Status preempt(const Session& session, const ChangeOptions& options);
Status resume(const Session& session, const ChangeOptions& options);
Status promote(const Session& session, const ChangeOptions& options);
// `verb` is hold or release.
Status change_hold(const Session& session, const std::string& verb, const ChangeOptions& options);
// Of an instance, or of a device: "device/host-0" as the name, or --device.
Status drain(const Session& session, const ChangeOptions& options);
// `verb` is cordon or uncordon.
Status change_cordon(const Session& session, const std::string& verb, const ChangeOptions& options);
// Takes an instance's document away: it ends in order and is forgotten.
Status delete_instance(const Session& session, const ChangeOptions& options);
Status load(const Session& session, const ChangeOptions& options);
// `verb` is pin, unpin or evict.
Status change_weights(const Session& session, const std::string& verb,
                      const ChangeOptions& options);
Status verify(const Session& session, const std::string& name, bool deep);

struct PolicyOptions {
    std::vector<std::string> files; // "-": stdin
    std::string if_match;           // apply: only to the policy with this tag
    bool dry_run = false;
    bool reset = false; // apply: forget what was applied
    std::string kind;   // schema
};
// All files or none. Against the policy that holds when it begins: if another one comes in between,
// nothing is applied.
Status apply(const Session& session, const PolicyOptions& options);
// What applying the files would change.
Status diff(const Session& session, const PolicyOptions& options);
Status show_policy(const Session& session);
// A changed document for an instance that goes on serving.
struct RolloutOptions {
    std::string name;
    std::string file; // "-": stdin
    std::string reason, request_id;
    std::string timeout; // of waiting
    uint64_t unavailable_max = 0;
    bool pause = false, in_place = false;
    bool wait = false, dry_run = false;
    bool watch = true; // status
};
Status rollout(const Session& session, const RolloutOptions& options);
Status rollout_status(const Session& session, const RolloutOptions& options);
// `verb` is pause, resume or undo.
Status change_rollout(const Session& session, const std::string& verb,
                      const RolloutOptions& options);
// What would happen if these instances came, or a class needed so many bytes.
struct WhatIfOptions {
    std::vector<std::string> files; // "-": stdin; else:
    std::string class_name, memory, device;
};
Status plan(const Session& session, const WhatIfOptions& options);
// How a checkpoint would be divided among ranks, checked without loading it.
struct PlanOptions {
    std::string path;
    Parallelism parallelism;
    std::string quantization = "none";
    std::string dtype = "auto";
};
// Local, as validate: no daemon is asked.
Status plan_weights(Format format, const PlanOptions& options);
// A new bearer token for the admin interface over TCP, and its line of the node's token file.
// Local.
Status make_token(Format format, const std::string& name, const std::string& role);
Status validate(Format format, const std::vector<std::string>& paths);
Status print_schema(const std::string& kind);

// A weight set's id from its id, the start of one, or its model's name.
Result<std::string> weight_set_id(const AdminClient& client, const std::string& name);

// Waits for an operation's end. A daemon that is gone meanwhile is given time to come back: its
// operations survive it. `on_look` is called after each look at it, about every `look_every`.
Result<json::object> wait_for(const AdminClient& client, const std::string& id,
                              std::chrono::milliseconds look_every = std::chrono::seconds(30),
                              const std::function<void()>& on_look = {});
// Begins an operation by POST.
Result<json::object> begin(const AdminClient& client, const std::string& target,
                           const json::object& body);
// As it is, with its phases; one that failed at once is told as an error, by main.
void print_operation(const Session& session, const json::object& operation);
// The error of a failed operation.
Status outcome_of(const json::object& operation);

} // namespace berth::cli
