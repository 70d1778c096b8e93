// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/options.h"

#include "base/inherited.h"
#include "base/units.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace berth::engine {

namespace {

std::string check_bytes(const std::string& text) {
    const auto bytes = parse_bytes(text);
    return bytes ? std::string() : bytes.error().message;
}

void add_rank_options(CLI::App& app, Options& options) {
    app.add_option("--ranks", options.ranks,
                   "Processes that share every layer of the model, one on each device (tensor "
                   "parallelism); all are started alike, with one --rendezvous")
        ->envname("BERTH_RANKS")
        ->check(CLI::Range(1, 1024));
    app.add_option("--rank", options.rank,
                   "Which of them this is; 0 answers requests, the others need no --listen")
        ->envname("BERTH_RANK")
        ->check(CLI::Range(0, 1023));
    app.add_option("--rendezvous", options.rendezvous,
                   "Where they meet: file:///PATH, a file that no earlier start has used, or "
                   "tcp://HOST:PORT, where rank 0 listens")
        ->envname("BERTH_RENDEZVOUS");
}

// What no single option can see.
void check_together(const Options& options) {
    if (options.rank >= options.ranks)
        throw CLI::ValidationError(
            "--rank",
            fmt::format("{} of {} ranks, which are numbered from 0", options.rank, options.ranks));
    if (options.ranks > 1 && options.rendezvous.empty())
        throw CLI::RequiredError("--rendezvous");
    if (options.rank == 0 && !options.has_server() && options.batch_input.empty())
        throw CLI::RequiredError("--listen or --batch-input");
    if (options.prefill_chunk % options.block_tokens != 0)
        throw CLI::ValidationError("--prefill-chunk",
                                   fmt::format("{} is no multiple of the block of {} tokens",
                                               options.prefill_chunk, options.block_tokens));
}

void add_options(CLI::App& app, Options& options, std::string& kv_memory,
                 std::string& host_kv_memory) {
    app.add_option("--listen", options.listen,
                   "Serve the OpenAI interface at HOST:PORT (port 0: any free one)");
    auto* input = app.add_option("--batch-input", options.batch_input,
                                 "Answer the requests of this file (OpenAI batch format)");
    auto* output =
        app.add_option("--batch-output", options.batch_output, "Where their answers are appended");
    input->needs(output);
    output->needs(input);
    app.add_option("--model", options.model, "Checkpoint folder (modes off and guest)")
        ->envname("BERTH_MODEL_PATH");
    app.add_option(
           "--berth-mode,--mode", options.mode,
           "daemon: bring berthd up if needed; client: berthd must be there; off: load alone")
        ->envname("BERTH_MODE")
        ->check(CLI::IsMember({"daemon", "client", "off"}));
    app.add_option("--berth-fallback", options.fallback,
                   "Where no shared weights may be used: disk loads them for this process alone, "
                   "fail does not; else disk in mode daemon, fail in client")
        ->envname("BERTH_FALLBACK")
        ->check(CLI::IsMember({"disk", "fail"}));
    app.add_option("--weight-set", options.weight_set,
                   "Attach to the published set with this id; its canary, if its publisher left "
                   "one, is reproduced before the engine is ready");
    app.add_option("--device", options.device, "host-N, cuda, or a GPU's UUID")
        ->envname("BERTH_DEVICE");
    app.add_option("--dtype", options.dtype, "Must be the checkpoint's, which 'auto' takes")
        ->check(CLI::IsMember({"auto", "float32", "bfloat16"}));
    app.add_option("--served-model-name", options.served_model_name,
                   "The model's name to clients; else its name in the policy or its folder's");
    app.add_option("--max-batch", options.max_batch, "Sequences that decode together")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    app.add_option("--prefill-chunk", options.prefill_chunk, "Prompt tokens of one step")
        ->check(CLI::Range(16, 16384))
        ->capture_default_str();
    app.add_option("--block-tokens", options.block_tokens, "Tokens of one KV block")
        ->check(CLI::IsMember({"16", "32"}))
        ->capture_default_str();
    app.add_option("--max-context", options.max_context, "Longest prompt and answer together");
    app.add_option("--kv-memory", kv_memory, "KV memory where no berthd grants it, e.g. 2Gi")
        ->check(check_bytes, "BYTES");
    app.add_option("--host-kv-memory", host_kv_memory,
                   "Host memory for the KV of sequences that lose their place on the device; it is "
                   "kept for the next time, and what does not fit is computed again (default: a "
                   "quarter of the machine's memory)")
        ->check(check_bytes, "BYTES");
    app.add_flag("--batch-invariant", options.batch_invariant,
                 "Answers do not depend on what else is being answered (slower)");
    app.add_flag("!--no-prefix-cache", options.prefix_cache,
                 "Compute each prompt from its first token; by default one that begins as an "
                 "earlier one goes on from what is left of that in free blocks");
    app.add_option("--compute", options.compute,
                   "fast: kernels of our own and graphs, on GPUs with bfloat16 models; plain: "
                   "torch's operations alone; auto: fast where it is possible")
        ->check(CLI::IsMember({"auto", "fast", "plain"}));
    app.add_flag("!--no-graphs", options.graphs, "On the fast path, start each kernel by itself");
    app.add_option(
           "--look", options.look,
           "How a decode step on the fast path gives way at the gate: pieces: the host looks "
           "between graphs of a few layers; conditional: the device looks, in one graph "
           "of conditional parts")
        ->check(CLI::IsMember({"pieces", "conditional"}))
        ->capture_default_str();
    app.add_option("--threads", options.threads, "Threads of one operation on the CPU")
        ->envname("BERTH_THREADS")
        ->check(CLI::Range(0, 1024));
    add_rank_options(app, options);
}

} // namespace

std::optional<Options> parse_options(int argc, char** argv, int& exit_code) {
    Options options;
    std::string kv_memory = "1Gi", host_kv_memory;
    CLI::App app("berth-engine: the reference inference engine of Berth");
    add_options(app, options, kv_memory, host_kv_memory);
    try {
        app.parse(argc, argv);
        options.inherits_socket = inherits_descriptors();
        check_together(options);
    } catch (const CLI::ParseError& error) {
        exit_code = app.exit(error) == 0 ? 0 : 2;
        return std::nullopt;
    }
    options.kv_memory = *parse_bytes(kv_memory);
    if (!host_kv_memory.empty())
        options.host_kv_memory = *parse_bytes(host_kv_memory);
    return options;
}

} // namespace berth::engine
