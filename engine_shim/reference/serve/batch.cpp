// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/batch.h"

#include "base/hash.h"
#include "base/json.h"
#include "engine_shim/reference/serve/answer.h"
#include "engine_shim/reference/serve/event_inbox.h"
#include "engine_shim/reference/serve/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

namespace berth::serve {
namespace {

using Clock = std::chrono::steady_clock;

// Answers that end within this time are written together; one is never later than this on disk.
constexpr auto kGroupTime = std::chrono::milliseconds(20);
// How long to wait when the engine takes no more and none of ours is in it.
constexpr auto kRetryTime = std::chrono::milliseconds(200);
// A failed step may be the engine's trouble, not the item's.
constexpr unsigned kAttemptsMax = 3;

struct Running {
    const BatchItem* item = nullptr;
    CompletionCall call;
    std::vector<Choice> choices;
    std::vector<char> ended; // of each choice: the engine is through with it
    unsigned attempts = 1;
};

std::string answer_line(const BatchItem& item, int status, const std::string& body) {
    // The body is JSON already; the rest is made around it.
    json::object head;
    head["id"] = "batch_req_" + random_hex(12);
    head["custom_id"] = item.custom_id;
    std::string line = json::serialize(head);
    line.pop_back();
    return fmt::format(
        R"({},"response":{{"status_code":{},"request_id":"req_{}","body":{}}},"error":null}})"
        "\n",
        line, status, random_hex(12), body);
}

class Runner : public BatchRunner {
  public:
    Runner(BatchFiles files, engine::EngineApi& engine, const text::Tokenizer& tokenizer,
           Result<text::ChatTemplate> chat)
        : options_(std::move(files.options)), model_{engine, tokenizer, std::move(chat)},
          items_(std::move(files.items)), output_(std::move(files.output)) {
        for (const BatchItem& item : items_) {
            if (!output_.answered().contains(item.custom_id))
                waiting_.push_back(&item);
        }
        // Taken from the back.
        std::reverse(waiting_.begin(), waiting_.end());
        summary_.total = items_.size();
        summary_.answered = items_.size() - waiting_.size();
    }
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;
    ~Runner() override { cancel_all(); }

    Result<BatchSummary> run() override {
        Progress progress(summary_.answered, summary_.total);
        model_.engine.report_batch(summary_.answered, summary_.total);
        while (summary_.answered < summary_.total && !inbox_->stopped()) {
            fill();
            // Nothing in the engine and nothing to write: it takes nothing now.
            auto wait = !finished_.empty() ? kGroupTime : kRetryTime;
            for (engine::TokenEvent& event : inbox_->take(Clock::now() + wait))
                handle(event);
            if (!finished_.empty() && (Clock::now() >= write_at_ || running_.empty()))
                BERTH_TRY(write());
            if (options_.shows_progress)
                progress.update(summary_.answered, tokens_);
        }
        // What ended before the stop is an answer like any other.
        if (!finished_.empty())
            BERTH_TRY(write());
        if (options_.shows_progress)
            progress.finish(summary_.answered, tokens_);
        summary_.stopped = summary_.answered < summary_.total;
        cancel_all();
        return summary_;
    }

    void stop() override { inbox_->stop(); }

  private:
    // Enough in the engine that its batch is always full.
    size_t running_max() const {
        return size_t{2} * std::max<size_t>(model_.engine.max_batch(), 1);
    }

    void fill() {
        while (!waiting_.empty() && running_.size() < running_max()) {
            const BatchItem* item = waiting_.back();
            unsigned attempts = 1;
            if (auto failed = failures_.find(item); failed != failures_.end())
                attempts += failed->second;
            ApiResult<CompletionCall> call = read_call(item->body, item->kind, model_);
            if (!call) {
                waiting_.pop_back();
                finish(*item, call.error().status, serialize(call.error()));
                continue;
            }
            Running running;
            running.item = item;
            running.call = std::move(*call);
            running.attempts = attempts;
            for (size_t index = 0; index < running.call.prompts.size(); ++index)
                running.choices.emplace_back(model_.tokenizer, running.call.stops);
            running.ended.resize(running.choices.size());
            Status submitted = submit(running);
            if (!submitted && submitted.error().code == ErrorCode::kResourceExhausted &&
                !running_.empty())
                return; // when others have ended
            if (!submitted && submitted.error().code == ErrorCode::kUnavailable) {
                // The engine ends; what is not answered is the next one's.
                inbox_->stop();
                return;
            }
            waiting_.pop_back();
            if (!submitted) {
                ApiError error = to_api_error(submitted.error());
                finish(*item, error.status, serialize(error));
            } else {
                std::string id = running.call.id;
                running_.emplace(std::move(id), std::move(running));
            }
        }
    }

    Status submit(const Running& running) {
        for (size_t index = 0; index < running.call.prompts.size(); ++index) {
            Status status = model_.engine.submit(running.call.request(index), inbox_->callback());
            if (!status) {
                while (index-- > 0)
                    model_.engine.cancel(running.call.request_id(index));
                return status;
            }
        }
        return {};
    }

    void handle(const engine::TokenEvent& event) {
        size_t dash = event.id.rfind('-');
        auto found = running_.find(event.id.substr(0, dash));
        if (dash == std::string::npos || found == running_.end())
            return;
        Running& running = found->second;
        size_t index = 0;
        while (index + 1 < running.choices.size() && running.call.request_id(index) != event.id)
            ++index;
        Choice& choice = running.choices[index];
        uint64_t before = choice.tokens();
        choice.push(event);
        tokens_ += choice.tokens() - before;
        if (choice.needs_cancel() && running.ended[index] == 0)
            model_.engine.cancel(event.id);
        if (event.finished || choice.needs_cancel())
            running.ended[index] = 1;
        bool is_over = std::all_of(running.choices.begin(), running.choices.end(),
                                   [](const Choice& each) { return each.finished(); });
        if (is_over) {
            end(running);
            running_.erase(found);
        }
    }

    void end(const Running& running) {
        for (const Choice& choice : running.choices) {
            // Cancelled from outside: the engine stops. The item has no answer and waits.
            if (choice.finish_reason() == "cancelled") {
                waiting_.push_back(running.item);
                return;
            }
            if (choice.finish_reason() != "error")
                continue;
            ApiError error = to_api_error(
                choice.error().value_or(Error{ErrorCode::kInternal, "the engine failed", "", 0}));
            if (error.status >= 500 && running.attempts < kAttemptsMax) {
                failures_[running.item] = running.attempts;
                waiting_.push_back(running.item);
            } else {
                finish(*running.item, error.status, serialize(error));
            }
            return;
        }
        finish(*running.item, 200, answer_body(running.call, running.choices));
    }

    void finish(const BatchItem& item, int status, const std::string& body) {
        if (finished_.empty())
            write_at_ = Clock::now() + kGroupTime;
        finished_ += answer_line(item, status, body);
        ++finished_count_;
        if (status != 200)
            ++summary_.failed;
    }

    Status write() {
        BERTH_TRY(output_.append(finished_));
        finished_.clear();
        summary_.answered += finished_count_;
        summary_.answered_here += finished_count_;
        finished_count_ = 0;
        model_.engine.report_batch(summary_.answered, summary_.total);
        return {};
    }

    void cancel_all() {
        for (const auto& [id, running] : running_) {
            for (size_t index = 0; index < running.ended.size(); ++index) {
                if (running.ended[index] == 0)
                    model_.engine.cancel(running.call.request_id(index));
            }
        }
        running_.clear();
    }

    BatchOptions options_;
    Model model_;
    std::vector<BatchItem> items_;
    BatchOutput output_;
    std::shared_ptr<EventInbox> inbox_ = std::make_shared<EventInbox>();
    std::vector<const BatchItem*> waiting_;
    std::unordered_map<std::string, Running> running_; // by call id
    std::unordered_map<const BatchItem*, unsigned> failures_;
    std::string finished_; // lines that are not written yet
    uint64_t finished_count_ = 0;
    Clock::time_point write_at_{};
    BatchSummary summary_;
    uint64_t tokens_ = 0;
};

Status check_same_batch(const std::vector<BatchItem>& items, const BatchOutput& output,
                        const BatchOptions& options) {
    std::set<std::string> known;
    for (const BatchItem& item : items)
        known.insert(item.custom_id);
    for (const std::string& id : output.answered()) {
        if (!known.contains(id))
            return fail(ErrorCode::kFailedPrecondition,
                        fmt::format("{} answers custom_id '{}', which {} does not have: it is "
                                    "another batch's output; choose another file",
                                    options.output, id, options.input));
    }
    return {};
}

} // namespace

Result<BatchFiles> BatchFiles::open(BatchOptions options) {
    BERTH_ASSIGN(std::vector<BatchItem> items, read_batch_input(options.input));
    BERTH_ASSIGN(BatchOutput output, BatchOutput::open(options.output));
    BERTH_TRY(check_same_batch(items, output, options));
    return BatchFiles{std::move(options), std::move(items), std::move(output)};
}

std::unique_ptr<BatchRunner> BatchRunner::make(BatchFiles files, engine::EngineApi& engine,
                                               const text::Tokenizer& tokenizer,
                                               Result<text::ChatTemplate> chat) {
    return std::make_unique<Runner>(std::move(files), engine, tokenizer, std::move(chat));
}

} // namespace berth::serve
