// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/protocol/messages.h"

#include <concepts>
#include <type_traits>

// Each message's fields, listed once: writing and reading walk the same list, so that they cannot
// drift apart. Private to messages.cpp. `a` is called with a name and a member for each.
namespace berth::protocol {

template <typename M, typename T>
concept Is = std::same_as<std::remove_const_t<M>, T>;

template <typename A, Is<Environment> M>
void fields(A& a, M& m) {
    a("device_kind", m.device_kind);
    a("compute_capability", m.compute_capability);
    a("cuda_version", m.cuda_version);
    a("layout", m.layout);
    a("torch_version", m.torch_version);
}
template <typename A, Is<Hello> M>
void fields(A& a, M& m) {
    a("instance", m.instance);
    a("token", m.token);
    a("program", m.program);
    a("pid", m.pid);
    a("grant_bytes", m.grant_bytes);
    a("state", m.state);
    a("endpoint", m.endpoint);
    a("held", m.held);
    a("generation", m.generation);
    a("identity", m.identity);
    a("canary_tokens", m.canary_tokens);
}
template <typename A, Is<Welcome> M>
void fields(A& a, M& m) {
    a("node", m.node);
    a("instance", m.instance);
    a("model", m.model);
    a("model_path", m.model_path);
    a("dtype", m.dtype);
    a("quantization", m.quantization);
    a("device", m.device);
    a("device_kind", m.device_kind);
    a("class_name", m.class_name);
    a("class_value", m.class_value);
    a("raises_gate", m.raises_gate);
    a("gate_slot", m.gate_slot);
    a("grant_bytes", m.grant_bytes);
    a("grant_bytes_max", m.grant_bytes_max);
    a("slo_ttft_us", m.slo_ttft_us);
    a("slo_tpot_us", m.slo_tpot_us);
    a("generation", m.generation);
}
template <typename A, Is<Attach> M>
void fields(A& a, M& m) {
    a("model", m.model);
    a("path", m.path);
    a("weight_set", m.weight_set);
    a("device", m.device);
    a("environment", m.environment);
    a("wait", m.wait);
}
template <typename A, Is<Progress> M>
void fields(A& a, M& m) {
    a("phase", m.phase);
    a("bytes_done", m.bytes_done);
    a("bytes_total", m.bytes_total);
}
template <typename A, Is<Attached> M>
void fields(A& a, M& m) {
    a("weight_set", m.weight_set);
    a("fingerprint", m.fingerprint);
    a("model_path", m.model_path);
    a("segment_bytes", m.segment_bytes);
    a("verify_canary", m.verify_canary);
}
template <typename A, Is<State> M>
void fields(A& a, M& m) {
    a("state", m.state);
    a("endpoint", m.endpoint);
    a("reason", m.reason);
    a("message", m.message);
    a("phases", m.phases);
    a("grant_bytes", m.grant_bytes);
    a("grant_bytes_least", m.grant_bytes_least);
    a("held", m.held);
    a("weights", m.weights);
    a("identity", m.identity);
    a("canary_tokens", m.canary_tokens);
}
template <typename A, Is<Command> M>
void fields(A& a, M& m) {
    a("kind", m.kind);
    a("grant_bytes", m.grant_bytes);
    a("grace_ms", m.grace_ms);
    a("kv", m.kv);
    a("canary", m.canary);
    a("generation", m.generation);
    a("hand_over", m.hand_over);
    a("leaves", m.leaves);
}
template <typename A, Is<CommandDone> M>
void fields(A& a, M& m) {
    a("error", m.error);
    a("grant_bytes", m.grant_bytes);
    a("host_bytes", m.host_bytes);
    a("saved_bytes", m.saved_bytes);
    a("moved_bytes", m.moved_bytes);
    a("phases", m.phases);
}
template <typename A, Is<Report> M>
void fields(A& a, M& m) {
    a("requests_running", m.requests_running);
    a("requests_waiting", m.requests_waiting);
    a("requests_done", m.requests_done);
    a("tokens_done", m.tokens_done);
    a("steps_done", m.steps_done);
    a("gate_pauses", m.gate_pauses);
    a("grant_bytes", m.grant_bytes);
    a("batch_done", m.batch_done);
    a("batch_total", m.batch_total);
    a("ttft_us", m.ttft_us);
    a("tpot_us", m.tpot_us);
    a("step_ms", m.step_ms);
    a("short_of_memory", m.short_of_memory);
}
template <typename A, Is<Failed> M>
void fields(A& a, M& m) {
    a("error", m.error);
}
template <typename A, Is<Planned> M>
void fields(A& a, M& m) {
    a("fingerprint_json", m.fingerprint_json);
    a("fingerprint", m.fingerprint);
    a("segment_bytes", m.segment_bytes);
    a("host_staging_bytes", m.host_staging_bytes);
    a("device_overhead_bytes", m.device_overhead_bytes);
    a("tensors", m.tensors);
}
template <typename A, Is<Go> M>
void fields(A&, M&) {}
template <typename A, Is<Sealed> M>
void fields(A& a, M& m) {
    a("fingerprint", m.fingerprint);
    a("segment_bytes", m.segment_bytes);
    a("bytes_read", m.bytes_read);
    a("phases", m.phases);
}
template <typename A, Is<Kept> M>
void fields(A&, M&) {}
template <typename A, Is<Publish> M>
void fields(A& a, M& m) {
    a("device", m.device);
    a("model", m.model);
    a("path", m.path);
    a("fingerprint_json", m.fingerprint_json);
    a("fingerprint", m.fingerprint);
    a("segment_bytes", m.segment_bytes);
    a("tensors", m.tensors);
    a("find_only", m.find_only);
    a("held", m.held);
}
template <typename A, Is<PrivateLoad> M>
void fields(A& a, M& m) {
    a("device", m.device);
    a("fingerprint", m.fingerprint);
    a("segment_bytes", m.segment_bytes);
    a("device_overhead_bytes", m.device_overhead_bytes);
    a("reason", m.reason);
    a("message", m.message);
    a("held", m.held);
    a("shared", m.shared);
}
template <typename A, Is<Release> M>
void fields(A& a, M& m) {
    a("fingerprint", m.fingerprint);
}
template <typename A, Is<Canary> M>
void fields(A& a, M& m) {
    a("weight_set", m.weight_set);
    a("digest", m.digest);
}

} // namespace berth::protocol
