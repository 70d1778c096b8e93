// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/checkpoint.h"
#include "cache/checkpoint/index.h"

#include <string>
#include <vector>

// Whether the tensors that were found are the ones that are wanted.
namespace berth {

// A shard against the index: a tensor that the index puts elsewhere, or does not know, is a stray;
// a tensor that the index puts here and that is not here is missing. Both are refused by name.
Status check_shard(const CheckpointIndex& index, const std::string& file,
                   const std::vector<StoredTensor>& tensors);

// All tensors against what the model needs. Drops what is known to be harmless, layers that guess
// further tokens and a tied head's own copy (all land in ignored_tensors), adds the alias of a tied
// head, and refuses missing tensors, strays, wrong shapes and wrong element types by name. A matrix
// that is quantised by blocks needs its factors like any other tensor. Of an unknown architecture
// only the index is known, and that each quantised matrix has its factors. Blocks on the disk where
// a tied head is stored too.
Status check_model(Checkpoint& checkpoint);

} // namespace berth
