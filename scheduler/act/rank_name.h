// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/types.h"

#include <cstdint>
#include <cstdlib>
#include <string>

namespace berth {

// What tables of processes, sessions and gate slots know a rank of an instance by: rank 0 by the
// instance's own name, the others by "NAME/RANK", which is no name that a document could give.
inline node::InstanceName rank_name(const node::InstanceName& instance, uint32_t rank) {
    return rank == 0 ? instance : node::InstanceName(instance.value + "/" + std::to_string(rank));
}
struct RankOf {
    node::InstanceName instance;
    uint32_t rank = 0;
};
inline RankOf rank_of(const node::InstanceName& name) {
    const size_t slash = name.value.find('/');
    if (slash == std::string::npos)
        return {name, 0};
    return {node::InstanceName(name.value.substr(0, slash)),
            static_cast<uint32_t>(std::strtoul(name.value.c_str() + slash + 1, nullptr, 10))};
}

} // namespace berth
