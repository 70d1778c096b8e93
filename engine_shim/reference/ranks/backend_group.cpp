// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/backend_group.h"

#include "engine_shim/reference/ranks/process_group.h"

#include <ATen/ATen.h>

namespace berth::engine {

BackendGroup::BackendGroup(c10::intrusive_ptr<c10d::Backend> backend, Options options)
    : backend_(std::move(backend)), options_(options) {
    layers_between_looks_ = options.layers_between_looks;
}

at::Tensor BackendGroup::within_reach(const at::Tensor& tensor) const {
    return options_.through_host ? tensor.cpu().contiguous() : tensor.contiguous();
}

at::Tensor BackendGroup::sum(const at::Tensor& part) {
    std::vector<at::Tensor> tensors{within_reach(part)};
    backend_->allreduce(tensors)->wait();
    return options_.through_host ? tensors[0].to(part.device()) : tensors[0];
}

at::Tensor BackendGroup::side_by_side(const at::Tensor& part) {
    at::Tensor mine = within_reach(part);
    const int64_t ranks = backend_->getSize(), rows = part.size(0), columns = part.size(1);
    at::Tensor all = at::empty({ranks * rows, columns}, mine.options());
    backend_->_allgather_base(all, mine)->wait();
    all = all.view({ranks, rows, columns}).permute({1, 0, 2}).reshape({rows, ranks * columns});
    return options_.through_host ? all.to(part.device()) : all;
}

Result<std::unique_ptr<RankGroup>> connect_ranks(RankStore& store, const GroupPlace& place,
                                                 at::Device device, bool shares_device) {
    // NCCL refuses two ranks on one GPU.
    if (device.is_cuda() && !shares_device)
        return connect_nccl(store, place, device);
    return connect_gloo(store, place);
}

} // namespace berth::engine
