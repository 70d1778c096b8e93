// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <string>

namespace berth::testing {

// Why a checkpoint is not opened; one that is opened fails the test.
inline Error refusal(const std::string& path) {
    auto opened = open_checkpoint(path);
    EXPECT_FALSE(opened.has_value()) << "accepted";
    return opened ? Error{} : opened.error();
}

} // namespace berth::testing
