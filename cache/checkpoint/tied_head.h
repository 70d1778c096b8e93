// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/checkpoint.h"

namespace berth {

// A tied head that the checkpoint stores as well must be the embedding again: else config.json lies
// about the tie, and dropping the head's own bytes would change the model. Compares a few stretches
// of both, spread from first byte to last: two matrices that were trained apart differ in each.
// Blocks on the disk.
Status check_tied_head(const Checkpoint& checkpoint, const CheckpointTensor& head,
                       const CheckpointTensor& embedding);

} // namespace berth
