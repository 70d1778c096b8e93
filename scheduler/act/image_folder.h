// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace berth {

// What tidying a folder of images did, and what it left alone though its name is an image's.
struct Tidied {
    std::vector<std::string> removed; // paths
    std::vector<std::string> left;    // "PATH: why"
    std::string refused;              // why nothing was looked at; empty: all was
    static Tidied of_failure(Error error) { return {{}, {}, std::move(error.message)}; }
};

// The folder of images that this berthd uses. Others may use it too: who holds the lock on the
// folder is the one that removes there what is in no record of its own, so that nobody removes what
// another has written.
//
// Thread rule: any thread; one at a time gets on. Blocks on the disk.
class ImageFolder {
  public:
    // Removes the images, and the beginnings of such, that are none of `kept` (paths). What is not
    // an image by its name and by how it begins is left alone.
    Tidied tidy(const std::string& folder, const std::set<std::string>& kept);

  private:
    std::string claim(const std::string& folder);

    std::mutex mutex_;    // guards all below
    std::string claimed_; // empty: none
    UniqueFd lock_;
};

} // namespace berth
