// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/kernel_image.h"

#include "base/embedded_file.h"

#ifdef BERTH_KERNEL_IMAGE
BERTH_EMBED_FILE(berth_decode_image, BERTH_KERNEL_IMAGE)
#endif

namespace berth::engine::fast {

std::span<const std::byte> kernel_image() {
#ifdef BERTH_KERNEL_IMAGE
    return {berth_decode_image_begin, berth_decode_image_end};
#else
    return {};
#endif
}

} // namespace berth::engine::fast
