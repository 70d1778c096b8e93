// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/kernel_image.h"

// The assembler takes the file in as it is: BERTH_KERNEL_IMAGE is its path.
#ifdef BERTH_KERNEL_IMAGE
asm(".pushsection .rodata.berth_kernel_image, \"a\"\n"
    ".balign 64\n"
    ".hidden berth_kernel_image_begin\n"
    ".globl berth_kernel_image_begin\n"
    "berth_kernel_image_begin:\n"
    ".incbin \"" BERTH_KERNEL_IMAGE "\"\n"
    ".hidden berth_kernel_image_end\n"
    ".globl berth_kernel_image_end\n"
    "berth_kernel_image_end:\n"
    ".popsection\n");

extern "C" {
[[gnu::visibility("hidden")]] extern const std::byte berth_kernel_image_begin[];
[[gnu::visibility("hidden")]] extern const std::byte berth_kernel_image_end[];
}
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
