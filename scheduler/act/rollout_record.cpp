// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/rollout_record.h"

#include "base/json.h"
#include "policies/yaml.h"
#include "scheduler/act/wall_time.h"

#include <fmt/format.h>

namespace berth {

namespace {

Result<policies::InstanceSpec> spec_from(const std::string& yaml, const std::string& what) {
    BERTH_ASSIGN(const policies::Documents read, policies::parse_fragment(yaml, what));
    if (read.instances.size() != 1)
        return fail(ErrorCode::kCorrupt, fmt::format("{}: expected one Instance, found {}", what,
                                                     read.instances.size()));
    return read.instances.front();
}

// As check_documents() completes it: without a word a device for each.
void set_ranks(policies::InstanceSpec& spec, uint32_t ranks) {
    spec.ranks = ranks;
    if (spec.device_count == 0)
        spec.device_count = ranks;
}

} // namespace

MetaRecord to_record(const node::Rollout& r) {
    json::object written{
        {"number", r.number},
        {"before", policies::effective_yaml(r.before)},
        {"after", policies::effective_yaml(r.after)},
        {"ranksBefore", r.before.ranks}, // of their Models, which may be others when it is read
        {"ranksAfter", r.after.ranks},
        {"phase", node::to_string(r.phase)},
        {"first", r.first.value},
        {"surge", r.surge},
        {"surgeStays", r.surge_stays},
        {"paused", r.paused},
        {"mayStop", r.may_stop},
        {"madeRoom", r.made_room},
        {"undo", r.undo},
        {"goesBack", r.goes_back},
        {"adopted", r.adopted},
        {"cause", r.cause},
        {"reason", r.reason},
        {"message", r.message},
        {"startedMs", wall_ms(r.started)},
        {"sinceMs", wall_ms(r.since)},
        {"stoppedAtMs", r.stopped_at ? wall_ms(*r.stopped_at) : 0},
        {"gapNs", r.gap.count()},
    };
    return {std::string(kRolloutKey) + r.instance.value, json::serialize(written)};
}

MetaRecord no_rollout(const node::InstanceName& instance) {
    return {std::string(kRolloutKey) + instance.value, ""};
}

Result<node::Rollout> rollout_from(const MetaRecord& record) {
    node::Rollout r;
    r.instance = node::InstanceName(record.key.substr(kRolloutKey.size()));
    const std::string what = fmt::format("the record of the rollout of '{}'", r.instance.value);
    BERTH_ASSIGN(const json::value written, json::parse(record.value, what));
    json::Reader reader(written, what);
    reader.allow_unknown();
    r.number = reader.unsigned_integer("number");
    const std::string before = reader.string("before"), after = reader.string("after");
    const auto ranks_before = static_cast<uint32_t>(reader.unsigned_integer("ranksBefore", 1));
    const auto ranks_after = static_cast<uint32_t>(reader.unsigned_integer("ranksAfter", 1));
    const std::string phase = reader.string("phase");
    r.first = node::InstanceName(reader.string("first", ""));
    r.surge = reader.boolean("surge", false);
    r.surge_stays = reader.boolean("surgeStays", false);
    r.paused = reader.boolean("paused", false);
    r.may_stop = reader.boolean("mayStop", false);
    r.made_room = reader.boolean("madeRoom", false);
    r.undo = reader.boolean("undo", false);
    r.goes_back = reader.boolean("goesBack", false);
    r.adopted = reader.boolean("adopted", false);
    r.cause = reader.string("cause", "");
    r.reason = reader.string("reason", "");
    r.message = reader.string("message", "");
    r.started = steady_from(reader.integer("startedMs", 0));
    r.since = steady_from(reader.integer("sinceMs", 0));
    if (const int64_t at = reader.integer("stoppedAtMs", 0); at > 0)
        r.stopped_at = steady_from(at);
    r.gap = Nanoseconds(reader.integer("gapNs", 0));
    BERTH_TRY(reader.finish());
    BERTH_ASSIGN(r.phase, node::rollout_phase_from(phase));
    BERTH_ASSIGN(r.before, spec_from(before, what));
    BERTH_ASSIGN(r.after, spec_from(after, what));
    set_ranks(r.before, ranks_before);
    set_ranks(r.after, ranks_after);
    return r;
}

} // namespace berth
