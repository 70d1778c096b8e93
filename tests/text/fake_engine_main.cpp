// SPDX-License-Identifier: Apache-2.0
// berth-fake-engine: the server and the batch runner over the fake engine.
//   berth-fake-engine MODEL_DIR --listen HOST:PORT        serves; prints where on stdout
//   berth-fake-engine MODEL_DIR --generation N            serves the socket that it inherits
//   berth-fake-engine MODEL_DIR --batch-input FILE --batch-output FILE
// The server also answers on stdin's commands: "freeze", "hold", "thaw", and "counts", which prints
// {"begun", "ended", "cancelled", "inFlight"}; "leave" (all, or "connections", "nothing", "late")
// hands over to a successor.
#include "base/http/keeping.h"
#include "base/http/server.h"
#include "base/inherited.h"
#include "base/json.h"
#include "base/log.h"
#include "engine_shim/reference/serve/api_server.h"
#include "engine_shim/reference/serve/batch.h"
#include "engine_shim/reference/serve/inheritance.h"
#include "tests/text/fake_engine.h"

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <iostream>
#include <map>

namespace {

using namespace berth;

struct Options {
    std::string model;
    std::string listen;
    uint64_t generation = 0;
    std::string identity;
    serve::BatchOptions batch;
    unsigned step_us = 1000;
    std::string end_text = "<|im_end|>";
    std::string poison_text;
};

// To a successor.
const std::map<std::string, http::Leave> kLeave = {
    {"leave", http::Leave::kRequests},
    {"leave connections", http::Leave::kConnections},
    {"leave nothing", http::Leave::kNothing},
    {"leave late", http::Leave::kLate},
};

void obey(test::FakeEngine& engine, boost::asio::io_context& context, serve::ApiServer& server,
          const std::shared_ptr<http::Keeping>& keeping) {
    std::string command;
    while (std::getline(std::cin, command)) {
        if (const auto what = kLeave.find(command); what != kLeave.end())
            boost::asio::post(context, [&server, keeping, what] {
                server.leave(what->second);
                if (keeping && what->second != http::Leave::kLate)
                    keeping->release();
            });
        else if (command == "freeze")
            engine.freeze(true);
        else if (command == "hold")
            engine.freeze(true, "Paused");
        else if (command == "thaw")
            engine.freeze(false);
        json::object counts;
        counts["begun"] = engine.begun();
        counts["ended"] = engine.ended();
        counts["cancelled"] = engine.cancelled();
        counts["inFlight"] = engine.in_flight();
        std::cout << json::serialize(counts) << std::endl;
    }
}

// As an engine does at Serve, before its io thread runs.
Result<std::string> inherit(const Options& options, serve::ApiServer& server,
                            std::shared_ptr<http::Keeping>& keeping) {
    BERTH_ASSIGN(auto descriptors, take_inherited_descriptors());
    BERTH_ASSIGN(serve::Inheritance inherited, serve::inheritance_of(std::move(descriptors)));
    if (inherited.keeps()) {
        BERTH_ASSIGN(keeping, http::Keeping::open(
                                  std::move(inherited.journal), std::move(inherited.parked_in),
                                  std::move(inherited.parked_out), options.identity));
        BERTH_TRY(keeping->claim(options.generation, std::chrono::seconds(2)));
    }
    return server.take_over(std::move(inherited.listen), keeping);
}

Status serve_until_eof(const Options& options, test::FakeEngine& engine,
                       const text::Tokenizer& tokenizer, boost::asio::io_context& context) {
    serve::ApiServer server(context, engine, tokenizer, text::ChatTemplate::load(options.model));
    std::shared_ptr<http::Keeping> keeping;
    BERTH_ASSIGN(std::string where, options.generation > 0 ? inherit(options, server, keeping)
                                                           : server.listen(options.listen));
    std::cout << where << std::endl;
    std::thread thread([&] { context.run(); });
    obey(engine, context, server, keeping);
    boost::asio::post(context, [&] { server.stop(); });
    thread.join();
    return {};
}

Status run(const Options& options) {
    BERTH_TRY(log::start("berth-fake-engine"));
    BERTH_ASSIGN(text::Tokenizer tokenizer,
                 text::Tokenizer::load(options.model + "/tokenizer.json"));
    test::FakeEngine::Settings settings;
    settings.vocab_size = static_cast<uint32_t>(tokenizer.size());
    settings.step = std::chrono::microseconds(options.step_us);
    if (options.generation > 0) // as large as an engine's
        settings.queue_max = 4096;
    if (std::optional<int32_t> end = tokenizer.find(options.end_text))
        settings.eos.push_back(*end);
    settings.poison = tokenizer.find(options.poison_text).value_or(-1);
    boost::asio::io_context context(1); // outlives the engine's last callback
    test::FakeEngine engine(settings);
    if (!options.listen.empty() || options.generation > 0)
        return serve_until_eof(options, engine, tokenizer, context);
    BERTH_ASSIGN(serve::BatchFiles files, serve::BatchFiles::open(options.batch));
    const auto runner = serve::BatchRunner::make(std::move(files), engine, tokenizer,
                                                 text::ChatTemplate::load(options.model));
    BERTH_ASSIGN(serve::BatchSummary summary, runner->run());
    std::cout << summary.answered << " of " << summary.total << ", " << summary.answered_here
              << " here, " << summary.failed << " failed" << std::endl;
    return {};
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("The server and the batch runner over a fake engine");
    app.add_option("model", options.model)->required();
    app.add_option("--listen", options.listen);
    app.add_option("--batch-input", options.batch.input);
    app.add_option("--batch-output", options.batch.output);
    app.add_option("--generation", options.generation);
    app.add_option("--identity", options.identity);
    app.add_option("--step-us", options.step_us);
    app.add_option("--end", options.end_text);
    app.add_option("--poison", options.poison_text);
    CLI11_PARSE(app, argc, argv);
    Status status = run(options);
    if (!status)
        std::cerr << "berth-fake-engine: " << status.error().message << '\n';
    return status ? 0 : 1;
}
