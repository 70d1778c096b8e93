// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/load/main/control.h"
#include "cache/load/main/options.h"

// The loader's other ways: sets that exist already, as an image or on another device. berthd is
// told the same as of a load.
namespace berth {

Status load_image(const LoaderOptions& options, Control& control);
// Copies the source onto the device for berthd, or writes an image of it.
Status serve_source(const LoaderOptions& options, Control& control);

} // namespace berth
