// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"

namespace berth {

// Stands where a device could not be opened: every call gives the reason. So Client::device() can
// return a reference and still say what went wrong. Thread-safe; never blocks.
std::unique_ptr<Device> failed_device(std::string id, Error error);

} // namespace berth
