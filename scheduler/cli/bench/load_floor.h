// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <string>
#include <vector>

// What the machine can do at best, measured in the run of the bench that is compared with it.
namespace berth::cli::bench {

// The safetensors files of a folder, by name; NotFound without any.
Result<std::vector<std::string>> checkpoint_files(const std::string& folder);
// Drops the files' pages from the page cache, or reads them in.
Status drop_pages(const std::vector<std::string>& files);
Status warm_pages(const std::vector<std::string>& files);

// GB/s of direct reads of the files, with the number of streams that is fastest here (`streams`).
// Unsupported where the file system takes no direct reads.
struct DiskRate {
    double gb_per_s = 0;
    int streams = 0;
};
Result<DiskRate> direct_read_rate(const std::vector<std::string>& files);

// GB/s from a buffer that the device copies from at full speed onto the device, on its own lanes.
Result<double> copy_rate(const std::string& device);

} // namespace berth::cli::bench
