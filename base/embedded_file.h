// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// BERTH_EMBED_FILE(name, path): takes a file into this program as it is, by the assembler, between
// name_begin and name_end. At namespace scope of a .cpp; `name` is one of the program's own, `path`
// a string literal. Whoever builds the .cpp has to know that it depends on the file.
#define BERTH_EMBED_FILE(name, path)                                                               \
    asm(".pushsection .rodata." #name ", \"a\"\n"                                                  \
        ".balign 64\n"                                                                             \
        ".hidden " #name "_begin\n"                                                                \
        ".globl " #name "_begin\n" #name "_begin:\n"                                               \
        ".incbin \"" path "\"\n"                                                                   \
        ".hidden " #name "_end\n"                                                                  \
        ".globl " #name "_end\n" #name "_end:\n"                                                   \
        ".popsection\n");                                                                          \
    extern "C" {                                                                                   \
    [[gnu::visibility("hidden")]] extern const std::byte name##_begin[];                           \
    [[gnu::visibility("hidden")]] extern const std::byte name##_end[];                             \
    }
