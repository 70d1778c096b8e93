// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace berth::engine {

namespace {

// Powers are taken in float32, as the reference implementation does: a table in double would differ
// in the last bits, and at position 100,000 that is a visible angle.
std::vector<float> base_frequencies(double theta, uint32_t head_dim) {
    std::vector<float> inverse(head_dim / 2);
    for (uint32_t i = 0; i < inverse.size(); ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
        inverse[i] = 1.0F / std::pow(static_cast<float>(theta), exponent);
    }
    return inverse;
}

double yarn_mscale(double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// Long waves are divided by the factor, short ones stay, those between are mixed.
void scale_llama3(const RopeConfig& rope, std::vector<float>& inverse) {
    const double original = rope.original_max_positions;
    const double wave_low = original / rope.low_frequency_factor;
    const double wave_high = original / rope.high_frequency_factor;
    for (float& frequency : inverse) {
        const float wave = static_cast<float>(2.0 * std::numbers::pi) / frequency;
        if (wave > wave_low) {
            frequency = frequency / static_cast<float>(rope.factor);
        } else if (wave >= wave_high) {
            const float smooth =
                (static_cast<float>(original) / wave -
                 static_cast<float>(rope.low_frequency_factor)) /
                static_cast<float>(rope.high_frequency_factor - rope.low_frequency_factor);
            frequency =
                (1.0F - smooth) * frequency / static_cast<float>(rope.factor) + smooth * frequency;
        }
    }
}

// The dimension at which a wave turns `rotations` times over the original context.
double yarn_dimension(const RopeConfig& rope, double rotations, uint32_t head_dim) {
    return head_dim * std::log(rope.original_max_positions / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
}

// Dimensions below `low` keep their frequency, those above `high` are divided, between is a ramp.
void scale_yarn(const RopeConfig& rope, uint32_t head_dim, RopeFrequencies& frequencies) {
    double low = yarn_dimension(rope, rope.beta_fast, head_dim);
    double high = yarn_dimension(rope, rope.beta_slow, head_dim);
    if (rope.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, head_dim - 1.0);
    if (low == high)
        high += 0.001;
    for (size_t i = 0; i < frequencies.inverse.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        const float keep = 1.0F - static_cast<float>(ramp);
        const float frequency = frequencies.inverse[i];
        frequencies.inverse[i] =
            frequency / static_cast<float>(rope.factor) * (1.0F - keep) + frequency * keep;
    }
    double scale = yarn_mscale(rope.factor, 1.0);
    if (rope.attention_factor)
        scale = *rope.attention_factor;
    else if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0)
        scale =
            yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
    frequencies.scale = static_cast<float>(scale);
}

} // namespace

bool rope_depends_on_length(const ModelConfig& config) {
    return config.rope.type == "dynamic";
}

RopeFrequencies rope_frequencies(const ModelConfig& config, uint32_t length) {
    const RopeConfig& rope = config.rope;
    double theta = rope.theta;
    if (rope.type == "dynamic" && length > config.max_positions) {
        const double dim = config.head_dim;
        const double stretch = rope.factor * length / config.max_positions - (rope.factor - 1.0);
        theta *= std::pow(stretch, dim / (dim - 2.0));
    }
    RopeFrequencies frequencies{base_frequencies(theta, config.head_dim), 1.0F};
    if (rope.type == "linear") {
        for (float& frequency : frequencies.inverse)
            frequency /= static_cast<float>(rope.factor);
    } else if (rope.type == "llama3") {
        scale_llama3(rope, frequencies.inverse);
    } else if (rope.type == "yarn") {
        scale_yarn(rope, config.head_dim, frequencies);
    }
    return frequencies;
}

} // namespace berth::engine
