// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/frontend.h"

#include "base/hash.h"
#include "base/http/keeping.h"
#include "base/http/server.h"
#include "base/listen_socket.h"
#include "base/log.h"
#include "engine_shim/reference/serve/api_server.h"
#include "engine_shim/reference/serve/batch.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <thread>

namespace berth::engine {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds kSignalGrace{5};
// For an engine before this one that is ending: the kernel drops its lock then.
constexpr std::chrono::seconds kFencePatience{2};
// For answers that are done, on slow connections.
constexpr std::chrono::seconds kLastWrites{1};
constexpr std::chrono::milliseconds kLookAgain{2};

std::string digest_of(const std::string& model_folder, const std::string& model_hash) {
    std::string all = model_hash;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
        all += sha256_hex(read_file(model_folder + "/" + name).value_or(""));
    return sha256_hex(all);
}

// Of two engines with the same one reads a request as the other does, and goes on where it stopped.
std::string identity_of(const std::string& digest, const Engine& engine) {
    std::string all = fmt::format("journal {} {} context {} name {}", http::kJournalVersion, digest,
                                  engine.max_context(), engine.model_name());
    for (const int32_t token : engine.eos_tokens())
        all += fmt::format(" {}", token);
    return sha256_hex(all).substr(0, http::kIdentityBytesMax);
}

} // namespace

struct Frontend::Prepared {
    text::Tokenizer tokenizer;
    Result<text::ChatTemplate> chat;
    std::optional<serve::BatchFiles> batch;
    std::string digest; // of the weights and of what makes text of tokens
};

struct Frontend::State final : SocketSide {
    State(std::shared_ptr<Prepared> its_input, Engine& its_engine)
        : input(std::move(its_input)), engine(its_engine) {}

    std::shared_ptr<Prepared> input;
    Engine& engine;
    asio::io_context context{1};
    asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
    asio::signal_set signals{context};
    asio::steady_timer last_word{context};
    std::unique_ptr<serve::ApiServer> server;
    std::unique_ptr<serve::BatchRunner> batch;
    std::optional<BatchEnd> batch_end; // written by batch_thread, read after stop()
    std::string endpoint;
    std::string identity;
    std::thread thread;
    std::thread batch_thread;
    std::optional<serve::Inheritance> inherited;
    std::shared_ptr<http::Keeping> keeping; // of the inherited socket, if requests may be kept
    bool serves = false;

    Status inherit(serve::Inheritance given);
    Status serve(uint64_t generation) override;
    void leave(http::Leave what) override;
    size_t unfinished() override;
    void end(std::chrono::steady_clock::time_point until);
    // Runs it on the io thread, and waits for it.
    template <typename Work>
    auto on_io_thread(Work task) {
        std::promise<decltype(task())> done;
        auto result = done.get_future();
        asio::post(context, [&] { done.set_value(task()); });
        return result.get();
    }

    void make_server();
    Status listen(const Options& options);
    void run_batch();
    void await_signals();
};

Frontend::Frontend() = default;
Frontend::~Frontend() {
    stop();
}
const std::string& Frontend::endpoint() const {
    return state_->endpoint;
}
const std::string& Frontend::identity() const {
    return state_->identity;
}

// A gate that stays closed must not keep the process: what it has answered is on record, and what
// came by an inherited socket is the next process's.
void Frontend::State::await_signals() {
    signals.add(SIGTERM);
    signals.add(SIGINT);
    signals.async_wait([this](const boost::system::error_code& error, int number) {
        if (error)
            return;
        log::info("signal={} stopping", number);
        engine.request_stop(kSignalGrace);
        last_word.expires_after(kSignalGrace);
        last_word.async_wait([this](const boost::system::error_code& cancelled) {
            if (cancelled)
                return;
            if (inherited)
                server->leave(http::Leave::kRequests);
            std::_Exit(0);
        });
    });
}

void Frontend::State::make_server() {
    if (!input->chat)
        log::warn("chat requests will be refused: {}", input->chat.error().message);
    server = std::make_unique<serve::ApiServer>(context, engine, input->tokenizer, input->chat);
}

// The socket listens already; nothing of it is accepted yet.
Status Frontend::State::inherit(serve::Inheritance given) {
    make_server();
    BERTH_ASSIGN(endpoint, socket_endpoint(given.listen.get()));
    if (given.keeps()) {
        BERTH_ASSIGN(keeping,
                     http::Keeping::open(std::move(given.journal), std::move(given.parked_in),
                                         std::move(given.parked_out), identity));
    }
    inherited = std::move(given);
    engine.use(*this);
    return {};
}

Status Frontend::State::serve(uint64_t generation) {
    if (!inherited)
        return fail(ErrorCode::kFailedPrecondition, "no socket was inherited", "NoSocket");
    const auto began = std::chrono::steady_clock::now();
    if (keeping)
        BERTH_TRY(keeping->claim(generation, kFencePatience));
    if (serves)
        return {};
    BERTH_ASSIGN(const uint64_t taken_over, on_io_thread([this]() -> Result<uint64_t> {
                     BERTH_TRY(server->take_over(std::move(inherited->listen), keeping));
                     return keeping ? keeping->counts().taken_over : 0;
                 }));
    serves = true;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    log::info("serves endpoint={} generation={} taken_over={} ms={:.1f}", endpoint, generation,
              taken_over, took.count());
    return {};
}

void Frontend::State::leave(http::Leave what) {
    on_io_thread([this, what] {
        server->leave(what);
        return true;
    });
    if (keeping && what != http::Leave::kLate)
        keeping->release();
}

size_t Frontend::State::unfinished() {
    return on_io_thread([this] { return server->unfinished(); });
}

Status Frontend::State::listen(const Options& options) {
    make_server();
    BERTH_ASSIGN(endpoint, server->listen(options.listen));
    return {};
}

// An engine that only has a batch to answer ends with it.
void Frontend::State::run_batch() {
    const auto summary = batch->run();
    if (summary) {
        log::info("batch total={} answered={} here={} failed={} stopped={}", summary->total,
                  summary->answered, summary->answered_here, summary->failed, summary->stopped);
        batch_end = BatchEnd{!summary->stopped, {}};
    } else {
        batch_end = BatchEnd{false, summary.error().message};
    }
    if (!server || !summary)
        engine.request_stop(Nanoseconds(0));
}

Result<std::shared_ptr<Frontend::Prepared>> Frontend::prepare(const Options& options,
                                                              const std::string& model_folder,
                                                              const std::string& model_hash) {
    BERTH_ASSIGN(text::Tokenizer tokenizer,
                 text::Tokenizer::load(model_folder + "/tokenizer.json"));
    std::optional<serve::BatchFiles> batch;
    if (!options.batch_input.empty()) {
        serve::BatchOptions files;
        files.input = options.batch_input;
        files.output = options.batch_output;
        BERTH_ASSIGN(batch, serve::BatchFiles::open(std::move(files)));
    }
    return std::make_shared<Prepared>(std::move(tokenizer), text::ChatTemplate::load(model_folder),
                                      std::move(batch), digest_of(model_folder, model_hash));
}

Result<std::unique_ptr<Frontend>> Frontend::make(const Options& options,
                                                 std::shared_ptr<Prepared> prepared, Engine& engine,
                                                 std::optional<serve::Inheritance> inherited) {
    std::unique_ptr<Frontend> made(new Frontend());
    made->state_ = std::make_unique<State>(std::move(prepared), engine);
    State& state = *made->state_;
    state.identity = identity_of(state.input->digest, engine);
    if (inherited)
        BERTH_TRY(state.inherit(std::move(*inherited)));
    else if (!options.listen.empty())
        BERTH_TRY(state.listen(options));
    if (state.input->batch)
        state.batch = serve::BatchRunner::make(std::move(*state.input->batch), engine,
                                               state.input->tokenizer, state.input->chat);
    return made;
}

Status Frontend::serve(uint64_t generation) {
    return state_->serve(generation);
}

void Frontend::start() {
    if (state_->thread.joinable())
        return;
    state_->await_signals();
    state_->thread = std::thread([this] { state_->context.run(); });
    if (state_->batch)
        state_->batch_thread = std::thread([this] { state_->run_batch(); });
}

// The engine is done; what it gave last is still on its way to the clients.
void Frontend::State::end(std::chrono::steady_clock::time_point until) {
    if (server && server->answering() > 0 && std::chrono::steady_clock::now() < until) {
        last_word.expires_after(kLookAgain);
        last_word.async_wait([this, until](const boost::system::error_code&) { end(until); });
        return;
    }
    if (server)
        server->stop();
    signals.cancel();
    last_word.cancel();
    work.reset();
}

void Frontend::stop() {
    if (!state_ || !state_->thread.joinable())
        return;
    if (state_->batch_thread.joinable()) {
        state_->batch->stop();
        state_->batch_thread.join();
    }
    asio::post(state_->context,
               [this] { state_->end(std::chrono::steady_clock::now() + kLastWrites); });
    state_->thread.join();
}

std::optional<Frontend::BatchEnd> Frontend::batch_end() const {
    return state_->batch_end;
}

} // namespace berth::engine
