// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/state.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

// What the actor must do, in this order. A Persist action comes before the action that it
// announces: the actor lets the record be durable before it acts. What an action brings about comes
// back as an event, which each action names.
namespace berth::node {

// -> LoadPlanned | LoadFailed, ..., LoaderExited. The environment is the device's own; the actor
// knows it.
struct StartLoad {
    LoadId load{};
    LoadKey key;
    ModelName model;  // empty: by path
    DeviceId source;  // the tier that it comes from; empty: the checkpoint
    WeightSetId from; // the set there
    std::string file; // of its image
};
// Copy a set from where it lies to a tier. To host memory as a load: -> LoadPlanned | LoadFailed,
// ..., LoaderExited; to an image: -> ImageWritten | LoadFailed, LoaderExited.
struct StartCopy {
    LoadId load{};
    WeightSetId set;
    DeviceId source;
    DeviceId made_on; // whose environment it is for
    DeviceId to;
    std::string file;
};
struct GoLoad { // -> LoadProgress*, LoadSealed | LoadFailed
    LoadId load{};
};
// Tell the loader Failed; it exits. -> LoaderExited
struct RefuseLoad {
    LoadId load{};
    Error error;
};
struct KillLoad { // -> LoaderExited
    LoadId load{};
};
// Hand the sealed set's descriptors to the keeper; when it has them, tell the loader Kept.
// -> LoaderExited
struct KeepWeights {
    LoadId load{};
    WeightSet set;
};
// Close the descriptors here and in the keeper, or remove the file; forget the record.
// -> WeightsDropped | DropFailed
struct DropWeights {
    WeightSetId set;
    DeviceId device;
};
// Remove from the folder what earlier writers of images left there and no record names.
struct TidyImages {
    std::string folder;
};
// For those who wait in Attach: the load with this key has ended.
struct LoadFinished {
    LoadKey key;
    std::optional<WeightSetId> set;
    std::optional<Error> error;
};

// For the engine that asked: its load, about which GoLoad, RefuseLoad, KillLoad and KeepWeights
// speak from then on; or why there is none. Both: it may not publish what it holds already, and
// that counts as a private load does, until PrivateLoadEnded.
struct PublicationAnswered {
    uint64_t publication = 0;
    std::optional<LoadId> load;
    std::optional<Error> error;
};

// Make a token, record its hash, spawn. -> ProcessStarted | ProcessStartFailed, ..., ProcessExited
struct StartProcess {
    InstanceName instance;
    policies::InstanceSpec spec;
    policies::ModelSpec model; // name empty: none
    std::vector<DeviceId> devices;
    uint64_t grant_bytes = 0; // on each
    uint32_t ranks = 1;       // several: a process each, and `devices` are by rank
    uint64_t number = 0;      // of this start, counted for the instance
};
struct TerminateProcess { // SIGTERM to the group: engines without a session. -> ProcessExited
    InstanceName instance;
    ProcessRef process;
};
struct StopProcess { // SIGSTOP to the group. -> ProcessStopped, once all of it stands still
    InstanceName instance;
    ProcessRef process;
};
struct KillProcess { // SIGKILL to the group. -> ProcessExited | KillRefused
    InstanceName instance;
    ProcessRef process;
};
struct ContinueProcess { // SIGCONT to the group. -> ProcessContinued
    InstanceName instance;
    ProcessRef process;
};
struct InspectProcess { // -> ProcessInspected
    InstanceName instance;
    ProcessRef process;
};
struct SendCommand { // -> CommandDone (or SessionClosed)
    InstanceName instance;
    CommandId command{};
    CommandKind kind = CommandKind::kPause;
    uint64_t grant_bytes = 0;
    int64_t grace_ms = 0;
    policies::KvOnOffload kv = policies::KvOnOffload::kAuto;
    bool canary = true;
    uint64_t generation = 0;            // of Serve
    HandOver hand_over = HandOver::kNo; // of Stop
};
// What is in flight at the instance's socket now is what a later ForgetRequests may speak of.
struct NoteRequests {
    InstanceName instance;
};
// Nobody goes on with what is in flight at the instance's socket: its connections end.
struct ForgetRequests {
    InstanceName instance;
    bool noted = false; // those alone that were in flight at the last NoteRequests already
    bool drop = false;  // nor is there to be a journal any more
};
// The documents are others: tell the gates, and the engines that are connected, what concerns them.
struct TellRules {};
struct ConfirmBytes { // -> BytesConfirmed
    InstanceName instance;
    DeviceId device;
    ProcessRef process;
};

struct ArmTimer { // -> DeadlineExpired
    TimerId timer{};
    TimePoint at;
};
struct CancelTimer {
    TimerId timer{};
};

struct PersistInstance {
    Instance instance;
};
struct ForgetInstance {
    InstanceName instance;
};
struct PersistWeights { // its pin or its keys have changed
    WeightSet set;
};
struct PersistDevice { // its cordon has changed
    Device device;
};
struct PersistOperation {
    Operation operation;
};
struct PersistRollout {
    Rollout rollout;
};
struct ForgetRollout {
    InstanceName instance;
};
// What a rollout has come to is to be kept as the instance's document. -> DocumentsApplied |
// DocumentRefused
struct AdoptDocument {
    policies::InstanceSpec spec;
};
// The operation has ended; its record was persisted just before. state, error, message, bytes_freed
// and phases are final.
struct OperationDone {
    Operation operation;
};

struct EmitEvent {
    bool warning = false;
    std::string object; // "instance/nightly", "device/host-0", "weights/0123...", "load/7"
    std::string reason; // CamelCase
    std::string message;
};
// Why something was done, or was not, in words that an operator can act on.
struct Decision {
    struct Candidate {
        std::string name;
        std::string why; // why taken or rejected
        bool taken = false;
        uint64_t bytes = 0; // that it gives
    };
    std::string kind;                                        // "Place", "Preempt", "Load", "Resume"
    std::string object;                                      // "instance/chat"
    std::vector<std::pair<std::string, std::string>> inputs; // "free" -> "1.0 GiB"
    std::vector<Candidate> candidates;
    std::string winner; // "" when none was found
    std::string outcome;
    bool carried_out = true; // false: the policy's mode is Observe or Off
};

using Action =
    std::variant<StartLoad, StartCopy, GoLoad, RefuseLoad, KillLoad, KeepWeights, DropWeights,
                 TidyImages, LoadFinished, PublicationAnswered, StartProcess, TerminateProcess,
                 StopProcess, ContinueProcess, KillProcess, InspectProcess, SendCommand,
                 NoteRequests, ForgetRequests, TellRules, ConfirmBytes, ArmTimer, CancelTimer,
                 PersistInstance, ForgetInstance, PersistWeights, PersistDevice, PersistOperation,
                 PersistRollout, ForgetRollout, AdoptDocument, OperationDone, EmitEvent, Decision>;

} // namespace berth::node
