// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/cycles/node.h"

#include "base/units.h"
#include "scheduler/cli/bench/cycles/answers.h"
#include "scheduler/cli/bench/engine_node.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/node_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace berth::cli::bench {

namespace {

namespace fs = std::filesystem;

// The driver rounds.
constexpr uint64_t kSlackBytes = uint64_t{16} << 20;

constexpr std::string_view kPolicy = R"(apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: cycles}}
spec:
  preemption: {{reclaimDeadline: 2s, gracePeriod: 2s, fallback: Evict, kvOnOffload: {}}}
)";

std::string target(const char* verb) {
    return fmt::format("/v1/instances/{}:{}", CyclesNode::kBatch, verb);
}

} // namespace

Result<std::unique_ptr<CyclesNode>> CyclesNode::start(const CyclesOptions& options,
                                                      const std::vector<std::string>& prompts,
                                                      size_t batch_lines) {
    std::unique_ptr<CyclesNode> made(new CyclesNode());
    made->model_ = fs::absolute(options.model).lexically_normal().string();
    BERTH_ASSIGN(NodePlan plan,
                 plan_engine_node(options.programs, options.device, {kOnline, kBatch}));
    made->programs_ = plan.programs;
    made->batch_input_ = plan.folder + "/in.jsonl";
    made->batch_output_ = plan.folder + "/out.jsonl";
    BERTH_TRY(write_lines(made->batch_input_, prompts, options.tokens, batch_lines));
    BERTH_TRY(write_text(plan.folder + "/policies.yaml", made->documents(options)));
    BERTH_ASSIGN(made->node_, OwnNode::start(std::move(plan)));
    BERTH_ASSIGN(const json::object nightly, instance_of(made->node_->client(), kBatch));
    made->device_ = text_at(nightly, "device");
    return made;
}

std::string CyclesNode::documents(const CyclesOptions& options) const {
    std::vector<std::string> online{programs_ + "/berth-engine", "--served-model-name", "model"};
    if (options.fast)
        online.insert(online.end(), {"--max-batch", "1"});
    else
        online.emplace_back("--batch-invariant");
    const std::vector<std::string> more = words_of(options.engine_args);
    online.insert(online.end(), more.begin(), more.end());
    std::vector<std::string> batch = online;
    online.insert(online.end(), {"--listen", "127.0.0.1:0"});
    batch.insert(batch.end(), {"--batch-input", batch_input_, "--batch-output", batch_output_});
    // What is computed again in one piece has other shapes than token by token.
    return fmt::format(kPolicy, options.fast ? "Save" : "Auto") + model_document(model_) +
           instance_document({kOnline, "online", options.memory, options.memory, online, {}}) +
           instance_document({kBatch, "batch", "0", options.memory, batch, {}});
}

Result<std::string> CyclesNode::online_endpoint() const {
    BERTH_ASSIGN(const json::object chat, instance_of(node_->client(), kOnline));
    return text_at(chat, "endpoint");
}

Status CyclesNode::pause_batch() {
    return preempt("Pause", 0).map([](const json::object&) {});
}

Status CyclesNode::resume_batch() {
    const auto began = Clock::now();
    BERTH_TRY(run_to_end(node_->client(), target("resume"), {{"reason", "berth bench"}}));
    BERTH_TRY(until_running(node_->client(), kBatch, began));
    return {};
}

Result<json::object> CyclesNode::preempt(const std::string& mode, uint64_t grant_bytes) {
    json::object body{{"mode", mode}, {"reason", "berth bench"}};
    if (mode == "Shrink")
        body["grantBytes"] = grant_bytes;
    BERTH_ASSIGN(Finished finished, run_to_end(node_->client(), target("preempt"), body));
    finished.operation["wallMs"] = finished.wall_ms;
    return std::move(finished.operation);
}

Result<CyclesNode::DeviceBytes> CyclesNode::device_bytes() const {
    BERTH_ASSIGN(const json::value reply, node_->client().get("/v1/devices/" + device_));
    if (!reply.is_object())
        return fail(ErrorCode::kCorrupt, "berthd's reply is no device");
    const json::object& shown = reply.get_object();
    return DeviceBytes{number_at(shown, "totalBytes"), number_at(shown, "driverUsedBytes"),
                       number_at(shown, "freeBytes")};
}

Result<CycleTimes> CyclesNode::cycle(const Cycle& one) {
    BERTH_ASSIGN(const json::object before, instance_of(node_->client(), kBatch));
    if (text_at(before, "state") != "Running")
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("before a {} '{}' is {}: {}", to_string(one.kind), kBatch,
                                text_at(before, "state"), text_at(before, "message")),
                    "NotRunning");
    const uint64_t grant = number_at(before, "grantBytes");
    const bool frees = one.kind != CycleKind::kPause;
    const auto left = static_cast<uint64_t>(static_cast<double>(grant) * one.part);
    BERTH_ASSIGN(const json::object stopped, preempt(std::string(to_string(one.kind)), left));
    BERTH_ASSIGN(const DeviceBytes bytes, frees ? device_bytes() : DeviceBytes());
    CycleTimes times;
    times.preempt_ms = real_at(stopped, "wallMs");
    times.bytes_freed = number_at(stopped, "bytesFreed");
    times.bytes_saved = number_at(stopped, "bytesSaved");
    times.bytes_moved = number_at(stopped, "bytesMoved");
    times.bytes_back = !frees || (times.bytes_freed > 0 &&
                                  bytes.used + bytes.promised <= bytes.total + kSlackBytes);
    const auto began = Clock::now();
    BERTH_TRY(resume_batch());
    times.resume_ms = milliseconds_since(began);
    BERTH_ASSIGN(const json::object after, instance_of(node_->client(), kBatch));
    times.grant_back = number_at(after, "grantBytes") == grant;
    return times;
}

void CyclesNode::copy_results(const std::string& to) const {
    std::error_code ignored;
    fs::create_directories(to, ignored);
    const auto copy = [&](const fs::path& from) {
        fs::copy_file(from, fs::path(to) / from.filename(), fs::copy_options::overwrite_existing,
                      ignored);
    };
    copy(node_->folder() + "/berthd.log");
    for (const auto& entry : fs::directory_iterator(node_->folder() + "/state/engines", ignored))
        if (entry.path().extension() == ".log")
            copy(entry.path());
}

} // namespace berth::cli::bench
