// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/weights.h"

#include <ATen/core/Formatting.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace berth::engine {

namespace {

constexpr int64_t kBlock = 128; // rows and columns of a quantisation block

// Fetches tensors of the expected shapes and remembers the first error.
class Resolver {
  public:
    explicit Resolver(const WeightSource& source) : source_(source) {}

    at::Tensor take(const std::string& name, std::vector<int64_t> shape) {
        if (error_)
            return {};
        Result<at::Tensor> found = source_(name);
        if (!found) {
            error_ = found.error();
            return {};
        }
        check(name, *found, shape);
        return *found;
    }

    // A matrix, and its scales where it is FP8.
    LinearWeight take_linear(const std::string& name, int64_t out, int64_t in) {
        LinearWeight linear;
        if (error_)
            return linear;
        Result<at::Tensor> found = source_(name);
        if (!found || found->scalar_type() != at::kFloat8_e4m3fn) {
            linear.weight = take(name, {out, in});
            return linear;
        }
        check_shape(name, *found, {out, in});
        linear.weight = *found;
        const std::string scales = name + "_scale_inv";
        found = source_(scales);
        if (!found) {
            error_ = error_ ? error_ : found.error();
            return linear;
        }
        check_shape(scales, *found, {(out + kBlock - 1) / kBlock, (in + kBlock - 1) / kBlock});
        linear.scales = *found;
        return linear;
    }

    at::Tensor take_if(bool wanted, const std::string& name, std::vector<int64_t> shape) {
        return wanted ? take(name, std::move(shape)) : at::Tensor();
    }

    Status finish() const { return error_ ? Status(fail(*error_)) : Status(); }

  private:
    void refuse(const std::string& name, const std::string& why) {
        if (!error_)
            error_ = Error{ErrorCode::kMismatch, fmt::format("tensor '{}': {}", name, why),
                           "WeightMismatch", 0};
    }

    void check_shape(const std::string& name, const at::Tensor& tensor,
                     const std::vector<int64_t>& shape) {
        if (tensor.sizes() != at::IntArrayRef(shape))
            refuse(name, fmt::format("shape [{}], expected [{}] from config.json",
                                     fmt::join(tensor.sizes(), ", "), fmt::join(shape, ", ")));
    }

    void check(const std::string& name, const at::Tensor& tensor,
               const std::vector<int64_t>& shape) {
        check_shape(name, tensor, shape);
        if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kBFloat16)
            return refuse(
                name, fmt::format("dtype {}, expected Float or BFloat16: convert the checkpoint",
                                  c10::toString(tensor.scalar_type())));
        if (!first_.defined())
            first_ = tensor;
        if (tensor.scalar_type() != first_.scalar_type())
            return refuse(name, fmt::format("dtype {} beside {}: all must be of one dtype",
                                            c10::toString(tensor.scalar_type()),
                                            c10::toString(first_.scalar_type())));
        if (tensor.device() != first_.device())
            refuse(name, "lies on another device than the others");
    }

    const WeightSource& source_;
    at::Tensor first_;
    std::optional<Error> error_;
};

LayerWeights resolve_layer(const ModelConfig& config, Resolver& from, uint32_t index) {
    const std::string layer = fmt::format("model.layers.{}.", index);
    const std::string attention = layer + "self_attn.";
    const std::string mlp = layer + "mlp.";
    const int64_t hidden = config.hidden;
    const int64_t inner = config.intermediate;
    const int64_t query = int64_t{config.heads} * config.head_dim;
    const int64_t key = int64_t{config.kv_heads} * config.head_dim;
    LayerWeights to;
    to.input_norm = from.take(layer + "input_layernorm.weight", {hidden});
    to.post_norm = from.take(layer + "post_attention_layernorm.weight", {hidden});
    to.q = from.take_linear(attention + "q_proj.weight", query, hidden);
    to.k = from.take_linear(attention + "k_proj.weight", key, hidden);
    to.v = from.take_linear(attention + "v_proj.weight", key, hidden);
    to.o = from.take_linear(attention + "o_proj.weight", hidden, query);
    to.q_bias = from.take_if(config.qkv_bias, attention + "q_proj.bias", {query});
    to.k_bias = from.take_if(config.qkv_bias, attention + "k_proj.bias", {key});
    to.v_bias = from.take_if(config.qkv_bias, attention + "v_proj.bias", {key});
    to.o_bias = from.take_if(config.output_bias, attention + "o_proj.bias", {hidden});
    to.q_norm = from.take_if(config.qk_norm, attention + "q_norm.weight", {config.head_dim});
    to.k_norm = from.take_if(config.qk_norm, attention + "k_norm.weight", {config.head_dim});
    to.gate = from.take_linear(mlp + "gate_proj.weight", inner, hidden);
    to.up = from.take_linear(mlp + "up_proj.weight", inner, hidden);
    to.down = from.take_linear(mlp + "down_proj.weight", hidden, inner);
    to.gate_bias = from.take_if(config.mlp_bias, mlp + "gate_proj.bias", {inner});
    to.up_bias = from.take_if(config.mlp_bias, mlp + "up_proj.bias", {inner});
    to.down_bias = from.take_if(config.mlp_bias, mlp + "down_proj.bias", {hidden});
    return to;
}

} // namespace

Result<DecoderWeights> resolve_weights(const ModelConfig& config, const WeightSource& source) {
    Resolver from(source);
    DecoderWeights weights;
    const int64_t words = config.vocab / config.share.ranks;
    weights.embedding = from.take("model.embed_tokens.weight", {words, config.hidden});
    weights.final_norm = from.take("model.norm.weight", {config.hidden});
    weights.head =
        config.tied_head ? weights.embedding : from.take("lm_head.weight", {words, config.hidden});
    for (uint32_t index = 0; index < config.layers; ++index)
        weights.layers.push_back(resolve_layer(config, from, index));
    BERTH_TRY(from.finish());
    return weights;
}

} // namespace berth::engine
