// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/node/rollout.h"
#include "scheduler/store/records.h"

#include <string_view>

// A rollout as a row, and back. Its documents are written as the YAML that people write.
namespace berth {

inline constexpr std::string_view kRolloutKey = "rollout/";

MetaRecord to_record(const node::Rollout& rollout);
MetaRecord no_rollout(const node::InstanceName& instance);
inline bool is_rollout(const MetaRecord& record) {
    return record.key.starts_with(kRolloutKey) && !record.value.empty();
}
Result<node::Rollout> rollout_from(const MetaRecord& record);

} // namespace berth
