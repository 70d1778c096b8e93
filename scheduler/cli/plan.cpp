// SPDX-License-Identifier: Apache-2.0
#include "cache/load/plan_report.h"
#include "scheduler/cli/commands.h"

namespace berth::cli {

Status plan_weights(Format format, const PlanOptions& options) {
    LoadRequest request;
    request.path = options.path;
    request.recipe.parallelism = options.parallelism;
    request.recipe.quantisation = options.quantization;
    request.recipe.dtype = options.dtype;
    BERTH_TRY(check_parallelism(options.parallelism));
    for (uint32_t rank = 0; rank < options.parallelism.world(); ++rank)
        request.ranks.push_back(rank);
    BERTH_ASSIGN(LoadPlan plan, plan_load(request));
    if (format == Format::kTable) {
        print(plan_text(plan));
        return {};
    }
    BERTH_ASSIGN(json::value document, json::parse(plan_json(plan), "the plan"));
    print(format == Format::kJson ? pretty_json(document) : yaml_text(document));
    return {};
}

} // namespace berth::cli
