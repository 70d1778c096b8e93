// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <memory>
#include <string>
#include <thread>

namespace berth::cli::bench {

// What a read of the admin socket would cost if nothing were parsed, decided or written as JSON: a
// thread that answers every request with the same bytes. The floor of the reads' bench. Its file is
// removed with it.
class BareHttp {
  public:
    static Result<std::unique_ptr<BareHttp>> start(const std::string& path, size_t body_bytes);
    BareHttp(const BareHttp&) = delete;
    BareHttp& operator=(const BareHttp&) = delete;
    ~BareHttp(); // ends and joins the thread

  private:
    BareHttp(std::string path, UniqueFd listener, UniqueFd stop, size_t body_bytes);
    void run();

    std::string path_;
    UniqueFd listener_;
    UniqueFd stop_;
    std::string answer_;
    std::thread thread_; // last: it uses the others
};

} // namespace berth::cli::bench
