// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/gated_graph.h"

#include <utility>

namespace berth::engine::fast {

namespace {

class Builder {
  public:
    Builder(const GatedBuild& build, const GatedSections& sections)
        : build_(build), api_(build.api), sections_(sections) {}
    ~Builder() {
        if (graph_ != nullptr)
            (void)api_.graph_destroy(graph_);
    }
    Builder(const Builder&) = delete;
    Builder& operator=(const Builder&) = delete;

    Result<CUgraph> build() {
        BERTH_TRY(api_.check(api_.graph_create(&graph_, 0), "cuGraphCreate"));
        for (uint32_t section = 0; section < sections_.count; ++section) {
            CUgraphConditionalHandle handle = 0;
            BERTH_TRY(api_.check(api_.conditional_create(&handle, graph_, build_.context, 0,
                                                         CU_GRAPH_COND_ASSIGN_DEFAULT),
                                 "cuGraphConditionalHandleCreate"));
            BERTH_TRY(add_look(handle, section));
            BERTH_ASSIGN(const CUgraph body, add_condition(handle));
            BERTH_TRY(capture(body, section));
        }
        return std::exchange(graph_, nullptr);
    }

  private:
    Status add_look(CUgraphConditionalHandle handle, uint32_t section) {
        LookParams params{handle, sections_.word, sections_.header, section};
        void* arguments[] = {&params};
        CUDA_KERNEL_NODE_PARAMS node{};
        node.func = build_.look;
        node.gridDimX = node.gridDimY = node.gridDimZ = 1;
        node.blockDimX = node.blockDimY = node.blockDimZ = 1;
        node.kernelParams = arguments;
        CUgraphNode added = nullptr;
        BERTH_TRY(
            api_.check(api_.graph_add_kernel(&added, graph_, last_ == nullptr ? nullptr : &last_,
                                             last_ == nullptr ? 0 : 1, &node),
                       "cuGraphAddKernelNode"));
        last_ = added;
        return {};
    }

    Result<CUgraph> add_condition(CUgraphConditionalHandle handle) {
        CUgraphNodeParams node{};
        node.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
        node.conditional.handle = handle;
        node.conditional.type = CU_GRAPH_COND_TYPE_IF;
        node.conditional.size = 1;
        node.conditional.ctx = build_.context;
        CUgraphNode added = nullptr;
        BERTH_TRY(api_.check(api_.graph_add_node(&added, graph_, &last_, nullptr, 1, &node),
                             "cuGraphAddNode"));
        last_ = added;
        return node.conditional.phGraph_out[0];
    }

    Status capture(CUgraph body, uint32_t section) {
        BERTH_TRY(api_.check(api_.begin_capture_to(build_.stream, body, nullptr, nullptr, 0,
                                                   CU_STREAM_CAPTURE_MODE_RELAXED),
                             "cuStreamBeginCaptureToGraph"));
        const Status recorded = sections_.record(section);
        CUgraph same = nullptr; // ended also after a failure
        const Status ended =
            api_.check(api_.end_capture(build_.stream, &same), "cuStreamEndCapture");
        BERTH_TRY(recorded);
        return ended;
    }

    const GatedBuild& build_;
    const CudaApi& api_;
    const GatedSections& sections_;
    CUgraph graph_ = nullptr;
    CUgraphNode last_ = nullptr;
};

} // namespace

Result<CUgraph> build_gated(const GatedBuild& build, const GatedSections& sections) {
    const CudaApi& api = build.api;
    if (build.look == nullptr || api.graph_create == nullptr || api.graph_add_kernel == nullptr ||
        api.graph_add_node == nullptr || api.conditional_create == nullptr ||
        api.begin_capture_to == nullptr)
        return fail(ErrorCode::kUnsupported,
                    "graphs that look at the gate by themselves need a driver of CUDA 12.3 or "
                    "newer, and a build whose nvcc links device code");
    return Builder(build, sections).build();
}

} // namespace berth::engine::fast
