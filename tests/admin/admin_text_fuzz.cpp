// SPDX-License-Identifier: Apache-2.0
// Any body of the admin interface and any token file: a value or an error in words, never a crash;
// and what is accepted holds together.
#include "scheduler/admin/bodies.h"
#include "scheduler/admin/tokens.h"

#include <cstdlib>
#include <set>

namespace {

using namespace berth;

void require(bool holds) {
    if (!holds)
        std::abort();
}

template <typename T>
void explained(const Result<T>& result) {
    require(result.has_value() || !result.error().message.empty());
}

// Well-formed, with a piece of the input somewhere: random bytes alone hardly get past JSON.
std::string edited(std::string_view input) {
    static constexpr std::string_view kSeeds[] = {
        R"({"mode": "Offload", "gracePeriod": "200ms", "reason": "r", "requestId": "i"})",
        R"({"model": "m", "dtype": "auto", "quantization": "fp8-block", "device": "host-0"})",
        R"({"path": "/m/../n//", "dryRun": true})", R"({"drop": true, "deep": false})"};
    if (input.empty())
        return {};
    auto first = static_cast<unsigned char>(input.front());
    std::string text(kSeeds[first % 4]);
    size_t at = (first / 4U * 7U) % text.size();
    return text.replace(at, (first & 1U) != 0 ? 1 : 0, input.substr(1));
}

void bodies_of(std::string_view text) {
    explained(bodies::read_preempt(text, policies::Rung::kPause));
    explained(bodies::read_common(text));
    explained(bodies::read_verify(text));
    auto load = bodies::read_load(text);
    explained(load);
    if (load) {
        require(load->model.empty() != load->path.empty());
        require(load->path.empty() || load->path.front() == '/');
        require(load->path.size() < 2 || load->path.back() != '/');
    }
}

void tokens_of(std::string_view text) {
    auto tokens = Tokens::parse(text, "/f/tokens");
    explained(tokens);
    if (tokens) {
        require(tokens->size() <= Tokens::kTokensMax);
        require(tokens->find("berth_nobody_has_this_one") == nullptr);
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
    std::string_view input(reinterpret_cast<const char*>(data), size);
    bodies_of(input);
    bodies_of(edited(input));
    tokens_of(input);
    static const std::string kLine = make_token("one", policies::Role::kAdmin)->line + "\n";
    tokens_of(kLine + std::string(input));
    return 0;
}
