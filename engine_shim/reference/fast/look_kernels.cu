// SPDX-License-Identifier: Apache-2.0
// The look at the gate that a graph takes by itself. On its own, since it is linked with what CUDA
// keeps for kernels that steer graphs.
#include "kernel_params.h"

using berth::engine::fast::LookParams;

// One thread. The section behind this goes ahead if it is the next one to be done and the gate's
// word is as it was when the gate was last found open.
extern "C" __global__ void berth_look(const __grid_constant__ LookParams p) {
    uint32_t word = 0;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(p.word) : "memory");
    const bool goes_on = p.section == p.header->next_section && word == p.header->open_word;
    if (goes_on)
        p.header->next_section = p.section + 1;
    cudaGraphSetConditional(p.handle, goes_on ? 1U : 0U);
}
