// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/node.h"

#include "base/json.h"
#include "policies/yaml.h"
#include "scheduler/cli/bench/colocate/batch_work.h"
#include "scheduler/cli/bench/engine_node.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/node_calls.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

namespace berth::cli::bench {

namespace {

namespace fs = std::filesystem;

// More than any run answers: batch never ends by itself.
constexpr size_t kBatchLines = 30'000;
// What an applied document needs to reach an engine, with the report that shows it.
constexpr std::chrono::milliseconds kSettle{1500};

constexpr std::string_view kPolicy = R"(apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: colocate}}
spec:
  sharing: {{compute: {}, batchShareWhenBusy: {}}}
)";

std::string policy_text(const PhasePlan& phase) {
    return fmt::format(kPolicy, phase.compute, phase.share);
}

// A target of 0 is none that a document may name.
int64_t microseconds(double ms) {
    return std::max<int64_t>(1, std::llround(ms * 1e3));
}

Result<uint32_t> context_of(const std::string& endpoint) {
    BERTH_ASSIGN(const http::Response reply, http::request(endpoint, "GET", "/v1/models"));
    BERTH_ASSIGN(const json::value body, http::json_from(reply));
    const auto* data = body.is_object() ? body.get_object().if_contains("data") : nullptr;
    if (data != nullptr && data->is_array() && !data->get_array().empty() &&
        data->get_array().front().is_object())
        if (const uint64_t tokens =
                number_at(data->get_array().front().get_object(), "max_model_len");
            tokens >= 4 && tokens <= UINT32_MAX)
            return static_cast<uint32_t>(tokens);
    return fail(ErrorCode::kCorrupt, "the online engine does not say its max_model_len");
}

} // namespace

Status check_rules(const PhasePlan& phase) {
    return policies::parse_documents(policy_text(phase), phase.name)
        .map([](const policies::Documents&) {});
}

Result<std::unique_ptr<ColocateNode>> ColocateNode::start(const ColocateOptions& options,
                                                          const PhasePlan& rules) {
    std::unique_ptr<ColocateNode> made(new ColocateNode());
    made->options_ = options;
    made->options_.model = fs::absolute(options.model).lexically_normal().string();
    BERTH_ASSIGN(NodePlan plan,
                 plan_engine_node(options.programs, options.device, {kOnline, kBatch}));
    made->programs_ = plan.programs;
    made->folder_ = plan.folder;
    made->batch_input_ =
        options.batch.empty() ? plan.folder + "/in.jsonl" : fs::absolute(options.batch).string();
    made->batch_output_ = plan.folder + "/out.jsonl";
    if (options.batch.empty())
        BERTH_TRY(write_batch(made->batch_input_, kBatchLines, options.seed));
    BERTH_TRY(write_text(plan.folder + "/policies.yaml", made->documents(rules, {})));
    BERTH_ASSIGN(made->node_, OwnNode::start(std::move(plan)));
    BERTH_TRY(made->find_engines());
    return made;
}

std::string ColocateNode::documents(const PhasePlan& phase, const LatencyTargets& targets) const {
    std::vector<std::string> online{
        programs_ + "/berth-engine", "--listen", "127.0.0.1:0", "--served-model-name", "model",
        "--no-prefix-cache"}; // each phase has the same prompts
    const std::vector<std::string> both = words_of(options_.engine_args);
    online.insert(online.end(), both.begin(), both.end());
    // It listens too: its counters are read there, more often than it reports to berthd.
    std::vector<std::string> batch = online;
    const std::vector<std::string> more = words_of(options_.batch_args);
    batch.insert(batch.end(), more.begin(), more.end());
    batch.insert(batch.end(), {"--batch-input", batch_input_, "--batch-output", batch_output_});
    std::string slo;
    if (phase.with_slo)
        slo = fmt::format("{{ttft: {}us, tpot: {}us, percentile: 99}}",
                          microseconds(targets.ttft_ms), microseconds(targets.tpot_ms));
    return policy_text(phase) + model_document(options_.model) +
           instance_document({kOnline, "online", options_.memory, options_.memory, online, slo}) +
           instance_document({kBatch, "batch", "0", options_.memory, batch, {}});
}

Status ColocateNode::find_engines() {
    BERTH_ASSIGN(const json::object chat, instance_of(node_->client(), kOnline));
    BERTH_ASSIGN(const json::object nightly, instance_of(node_->client(), kBatch));
    BERTH_ASSIGN(online_, endpoint_from(text_at(chat, "endpoint")));
    BERTH_ASSIGN(batch_, endpoint_from(text_at(nightly, "endpoint")));
    device_ = text_at(chat, "device");
    online_pid_ = number_at(chat, "pid");
    batch_pid_ = number_at(nightly, "pid");
    BERTH_ASSIGN(context_tokens_max_, context_of(text_at(chat, "endpoint")));
    return {};
}

Status ColocateNode::check_mps() const {
    BERTH_ASSIGN(const json::value found, node_->client().get("/v1/doctor"));
    const auto* checks = found.is_object() ? found.get_object().if_contains("checks") : nullptr;
    if (checks != nullptr && checks->is_array())
        for (const json::value& check : checks->get_array())
            if (check.is_object() && text_at(check.get_object(), "name") == "mps")
                return flag_at(check.get_object(), "ok")
                           ? Status()
                           : fail(ErrorCode::kUnavailable, text_at(check.get_object(), "message"),
                                  "MpsAbsent");
    return fail(ErrorCode::kCorrupt, "berthd's doctor says nothing of MPS");
}

Result<ColocateNode::Preempted> ColocateNode::preempted() const {
    Preempted all;
    for (const char* name : {kOnline, kBatch}) {
        BERTH_ASSIGN(const json::object now, instance_of(node_->client(), name));
        const auto* found = now.if_contains("preempted");
        if (found == nullptr || !found->is_object())
            return fail(ErrorCode::kCorrupt,
                        fmt::format("berthd says nothing of what preempting '{}' has done", name));
        const json::object& one = found->get_object();
        all.count += number_at(one, "count");
        all.bytes_freed += number_at(one, "bytesFreed");
        all.bytes_saved += number_at(one, "bytesSaved");
        all.bytes_moved += number_at(one, "bytesMoved");
    }
    return all;
}

Status ColocateNode::check_engines() const {
    for (const auto& [name, pid] :
         {std::pair{kOnline, online_pid_}, std::pair{kBatch, batch_pid_}}) {
        BERTH_ASSIGN(const json::object now, instance_of(node_->client(), name));
        if (number_at(now, "pid") != pid)
            return fail(ErrorCode::kFailedPrecondition,
                        fmt::format("the engine of '{}' is no longer the one that the bench began "
                                    "with (pid {}, now {}, {}): {}",
                                    name, pid, number_at(now, "pid"), text_at(now, "state"),
                                    text_at(now, "message")),
                        "EngineRestarted");
    }
    return {};
}

Status ColocateNode::enter(const PhasePlan& phase, const LatencyTargets& targets) {
    const http::Headers headers{{"Content-Type", "application/yaml"}};
    BERTH_TRY(node_->client().exchange("PUT", "/v1/policy?file=" + folder_ + "/policies.yaml",
                                       documents(phase, targets), headers));
    if (phase.batch == batch_paused_) {
        const std::string target = fmt::format("/v1/instances/{}:", kBatch);
        if (phase.batch)
            BERTH_TRY(run_to_end(node_->client(), target + "resume", {}));
        else
            BERTH_TRY(run_to_end(node_->client(), target + "preempt", {{"mode", "Pause"}}));
        batch_paused_ = !phase.batch;
    }
    pause_between_looks(kSettle);
    return check_engines();
}

void ColocateNode::copy_logs(const std::string& to) const {
    std::error_code ignored;
    fs::create_directories(to, ignored);
    fs::copy_file(folder_ + "/berthd.log", to + "/berthd.log", fs::copy_options::overwrite_existing,
                  ignored);
    for (const char* from : {"/state/engines", "/state"})
        for (const auto& entry : fs::directory_iterator(folder_ + from, ignored))
            if (entry.path().extension() == ".log")
                fs::copy_file(entry.path(), fs::path(to) / entry.path().filename(),
                              fs::copy_options::overwrite_existing, ignored);
}

} // namespace berth::cli::bench
