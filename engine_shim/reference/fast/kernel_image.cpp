// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/kernel_image.h"

// The assembler takes the file in as it is: BERTH_KERNEL_IMAGE is its path.
#ifdef BERTH_KERNEL_IMAGE
asm(".pushsection .rodata.berth_decode_image, \"a\"\n"
    ".balign 64\n"
    ".hidden berth_decode_image_begin\n"
    ".globl berth_decode_image_begin\n"
    "berth_decode_image_begin:\n"
    ".incbin \"" BERTH_KERNEL_IMAGE "\"\n"
    ".hidden berth_decode_image_end\n"
    ".globl berth_decode_image_end\n"
    "berth_decode_image_end:\n"
    ".popsection\n");

extern "C" {
[[gnu::visibility("hidden")]] extern const std::byte berth_decode_image_begin[];
[[gnu::visibility("hidden")]] extern const std::byte berth_decode_image_end[];
}
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
