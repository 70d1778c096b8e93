// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/kernel_image.h"

#include "base/embedded_file.h"

#ifdef BERTH_KERNEL_IMAGE
BERTH_EMBED_FILE(berth_kernel_image, BERTH_KERNEL_IMAGE)
#endif

namespace berth {

std::span<const std::byte> kernel_image() {
#ifdef BERTH_KERNEL_IMAGE
    return {berth_kernel_image_begin, berth_kernel_image_end};
#else
    return {};
#endif
}

} // namespace berth
