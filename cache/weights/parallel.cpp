// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/parallel.h"

#include <fmt/format.h>

namespace berth {

namespace {

constexpr uint64_t kWorldMax = 65'536;

} // namespace

Status check_parallelism(const Parallelism& parallelism) {
    uint64_t in_stage = uint64_t{parallelism.tensor} * parallelism.data;
    if (parallelism.tensor == 0 || parallelism.pipeline == 0 || parallelism.expert == 0 ||
        parallelism.data == 0)
        return fail(ErrorCode::kInvalidArgument, "a parallel size of 0: each is 1 or more");
    if (parallelism.tensor > kWorldMax || parallelism.data > kWorldMax ||
        parallelism.pipeline > kWorldMax || in_stage * parallelism.pipeline > kWorldMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("tp x dp x pp is above {}", kWorldMax));
    if (in_stage % parallelism.expert != 0)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("expert parallelism {} does not divide the {} ranks of a stage "
                                "(tp {} x dp {})",
                                parallelism.expert, in_stage, parallelism.tensor,
                                parallelism.data));
    return {};
}

Result<RankPlace> place_of(const Parallelism& parallelism, uint32_t rank) {
    BERTH_TRY(check_parallelism(parallelism));
    if (rank >= parallelism.world())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("rank {} of {}: ranks are 0 to {}", rank, parallelism.world(),
                                parallelism.world() - 1));
    uint32_t in_stage = parallelism.tensor * parallelism.data;
    RankPlace place;
    place.rank = rank;
    place.stage = rank / in_stage;
    place.replica = rank % in_stage / parallelism.tensor;
    place.tensor_rank = rank % parallelism.tensor;
    place.expert_tensor = in_stage / parallelism.expert;
    place.expert_group = rank % in_stage / place.expert_tensor;
    place.expert_tensor_rank = rank % place.expert_tensor;
    // Without groups a replica's experts are its own: divided as the other layers are.
    if (parallelism.expert == 1) {
        place.expert_tensor = parallelism.tensor;
        place.expert_tensor_rank = place.tensor_rank;
    }
    return place;
}

std::string to_text(const Parallelism& parallelism) {
    std::string text;
    auto add = [&text](std::string_view name, uint32_t size) {
        if (size > 1)
            text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, size);
    };
    add("tp", parallelism.tensor);
    add("pp", parallelism.pipeline);
    add("dp", parallelism.data);
    add("ep", parallelism.expert);
    return text.empty() ? "one rank" : text;
}

} // namespace berth
