// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/rank_group.h"

#include <ATen/ATen.h>

namespace berth::engine {

at::Tensor RankGroup::sum_and_ask(const at::Tensor& part, bool& stand) {
    const double mine = wish_ && wish_() ? 1.0 : 0.0;
    const at::Tensor with_word = at::cat({part.reshape({-1}), at::full({1}, mine, part.options())});
    const at::Tensor total = sum(with_word);
    stand = total.narrow(0, part.numel(), 1).item<double>() > 0;
    return total.narrow(0, 0, part.numel()).view(part.sizes());
}

} // namespace berth::engine
