// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/model/rank_group.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string_view>
#include <utility>

namespace berth::engine {

// The decoder's collectives over any of c10d's backends.
class BackendGroup final : public RankGroup {
  public:
    struct Options {
        bool through_host = false; // for tensors on a GPU that the backend does not reach
        uint32_t layers_between_looks = 1;
    };
    BackendGroup(c10::intrusive_ptr<c10d::Backend> backend, Options options);

    at::Tensor sum(const at::Tensor& part) override;
    at::Tensor side_by_side(const at::Tensor& part) override;

  private:
    at::Tensor within_reach(const at::Tensor& tensor) const;

    const c10::intrusive_ptr<c10d::Backend> backend_;
    const Options options_;
};

// Whatever torch throws while a backend is made.
template <typename F>
Result<std::unique_ptr<RankGroup>> guarded_connect(std::string_view what, F&& connect) {
    try {
        return connect();
    } catch (const std::exception& thrown) {
        const std::string_view text = thrown.what();
        return fail(ErrorCode::kUnavailable,
                    fmt::format("the ranks cannot be connected by {}: {}", what,
                                text.substr(0, text.find('\n'))),
                    "RanksNotConnected");
    }
}

} // namespace berth::engine
