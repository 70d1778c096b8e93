// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/kernel_image.h"

// As in kernel_image.cpp.
#ifdef BERTH_KERNEL_IMAGE
asm(".pushsection .rodata.berth_look_image, \"a\"\n"
    ".balign 64\n"
    ".hidden berth_look_image_begin\n"
    ".globl berth_look_image_begin\n"
    "berth_look_image_begin:\n"
    ".incbin \"" BERTH_KERNEL_IMAGE "\"\n"
    ".hidden berth_look_image_end\n"
    ".globl berth_look_image_end\n"
    "berth_look_image_end:\n"
    ".popsection\n");

extern "C" {
[[gnu::visibility("hidden")]] extern const std::byte berth_look_image_begin[];
[[gnu::visibility("hidden")]] extern const std::byte berth_look_image_end[];
}
#endif

namespace berth::engine::fast {

std::span<const std::byte> look_image() {
#ifdef BERTH_KERNEL_IMAGE
    return {berth_look_image_begin, berth_look_image_end};
#else
    return {};
#endif
}

} // namespace berth::engine::fast
