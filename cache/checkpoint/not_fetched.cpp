// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/not_fetched.h"

#include "cache/checkpoint/fault.h"

#include <array>

namespace berth {

namespace {

struct Impostor {
    std::string_view begins;
    std::string_view what;
    std::string_view remedy;
};

constexpr std::string_view kGetAgain = "download the file again, with the rights that it needs";
constexpr std::string_view kConvert = "convert the checkpoint to safetensors";

constexpr std::array kImpostors = {
    Impostor{"version https://git-lfs", "a Git LFS pointer instead of the file",
             "fetch it with 'git lfs pull'"},
    Impostor{"<!DOCTYPE", "a web page instead of the file", kGetAgain},
    Impostor{"<!doctype", "a web page instead of the file", kGetAgain},
    Impostor{"<html", "a web page instead of the file", kGetAgain},
    Impostor{"GGUF", "a GGUF file", kConvert},
    Impostor{"PK\x03\x04", "a zip archive, as torch.save writes it", kConvert},
};

} // namespace

Status check_is_fetched(std::string_view first, std::string_view file, std::string_view wanted) {
    for (const Impostor& impostor : kImpostors)
        if (first.starts_with(impostor.begins))
            return fail_fault({"NotDownloaded", file, "", impostor.what, wanted, impostor.remedy});
    return {};
}

} // namespace berth
