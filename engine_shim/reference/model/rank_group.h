// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace berth::engine {

// The ranks that share every layer of a model, as the decoder sees them. Each call is made by all
// ranks in the same order and waits for the slowest. Throws as torch does when a rank is gone or
// the others do not come within the group's time. Engine thread only.
class RankGroup {
  public:
    RankGroup() = default;
    RankGroup(const RankGroup&) = delete;
    RankGroup& operator=(const RankGroup&) = delete;
    virtual ~RankGroup() = default;

    // The sum of all ranks' parts.
    virtual at::Tensor sum(const at::Tensor& part) = 0;
    // [rows, n] of each rank side by side: [rows, ranks * n], in the order of ranks.
    virtual at::Tensor side_by_side(const at::Tensor& part) = 0;

    // The same sum, and in one word beside it whether any rank wants all to stand still now
    // (set_wish): so all learn it at the same place, and no collective is spent on it.
    at::Tensor sum_and_ask(const at::Tensor& part, bool& stand);
    void set_wish(std::function<bool()> wish) { wish_ = std::move(wish); }
    // Ranks ask each other after each so many layers: on a GPU the answer waits for the device.
    uint32_t layers_between_looks() const { return layers_between_looks_; }

  protected:
    uint32_t layers_between_looks_ = 1;

  private:
    std::function<bool()> wish_;
};

} // namespace berth::engine
