// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/process_group.h"

namespace berth::engine {

Result<std::unique_ptr<RankGroup>> connect_nccl(RankStore&, const GroupPlace&, at::Device) {
    return fail(ErrorCode::kUnsupported,
                "several ranks on GPUs need NCCL, and this program was built where nccl.h was not "
                "installed: build it beside the nvidia-nccl package",
                "NoNccl");
}

} // namespace berth::engine
