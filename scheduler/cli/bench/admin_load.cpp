// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/admin_load.h"

#include "base/json.h"
#include "base/unique_fd.h"
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/http_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <random>
#include <sys/epoll.h>

namespace berth::cli::bench {

namespace {

constexpr int kEventsMax = 64;
constexpr std::string_view kNewest = "{operation}";
// How long what is under way at the end may take to come to its own.
constexpr std::chrono::seconds kEndMax{10};

double cpu_seconds_of_thread() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

class Load {
  public:
    explicit Load(const LoadPlan& plan) : plan_(plan), operation_(plan.operation) {}

    Result<LoadOutcome> run() {
        epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
        if (!epoll_)
            return fail_errno("epoll_create1");
        for (size_t n = 0; n < plan_.connections; ++n)
            BERTH_TRY(add(""));
        if (plan_.changes_per_second > 0)
            for (const std::string& name : plan_.instances)
                BERTH_TRY(add(name));
        const double cpu = cpu_seconds_of_thread();
        began_ = Clock::now();
        for (Line& line : lines_)
            if (line.instance.empty())
                BERTH_TRY(read(line));
        BERTH_TRY(serve());
        outcome_.own_cpu_seconds = cpu_seconds_of_thread() - cpu;
        outcome_.changes_per_second =
            static_cast<double>(outcome_.change_ms.size()) / outcome_.seconds;
        return std::move(outcome_);
    }

  private:
    struct Line {
        explicit Line(HttpLine of, std::string name)
            : http(std::move(of)), instance(std::move(name)) {}
        HttpLine http;
        std::string instance; // that it changes; empty: it reads
        Clock::time_point asked;
        std::string operation; // that it waits for
        bool paused = false;
    };

    Status add(const std::string& instance) {
        BERTH_ASSIGN(HttpLine http, HttpLine::connect(plan_.socket));
        lines_.emplace_back(std::move(http), instance);
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.ptr = &lines_.back();
        if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, lines_.back().http.fd(), &event) != 0)
            return fail_errno("epoll_ctl");
        return {};
    }

    bool is_over() const { return Clock::now() - began_ >= plan_.duration; }

    Status serve() {
        epoll_event events[kEventsMax];
        for (;;) {
            const auto now = Clock::now();
            const bool over = is_over();
            if (over && outcome_.seconds == 0)
                outcome_.seconds = std::chrono::duration<double>(now - began_).count();
            const bool busy =
                std::ranges::any_of(lines_, [](const Line& line) { return line.http.is_busy(); });
            if (over && !busy)
                return {};
            if (now - began_ > plan_.duration + kEndMax)
                return fail(ErrorCode::kDeadlineExceeded,
                            "berthd has not answered what was asked within 10 s");
            int wait_ms = 100;
            if (!over)
                BERTH_TRY(change_what_is_due(now, wait_ms));
            const int ready = ::epoll_wait(epoll_.get(), events, kEventsMax, wait_ms);
            for (int n = 0; n < ready; ++n)
                BERTH_TRY(answered(*static_cast<Line*>(events[n].data.ptr)));
        }
    }

    Status change_what_is_due(Clock::time_point now, int& wait_ms) {
        if (plan_.changes_per_second <= 0)
            return {};
        const double passed = std::chrono::duration<double>(now - began_).count();
        const auto due = static_cast<uint64_t>(passed * plan_.changes_per_second);
        // Who has not ended yet keeps its place; a rate that berthd cannot hold shows as such.
        for (size_t looked = 0; changes_ < due && looked < lines_.size(); ++looked) {
            Line& line = lines_[next_line_++ % lines_.size()];
            if (line.instance.empty() || line.http.is_busy())
                continue;
            ++changes_;
            BERTH_TRY(change(line));
        }
        const double next = static_cast<double>(changes_ + 1) / plan_.changes_per_second - passed;
        wait_ms = std::clamp(static_cast<int>(next * 1e3), 0, wait_ms);
        return {};
    }

    Status change(Line& line) {
        line.asked = Clock::now();
        const std::string target =
            fmt::format("/v1/instances/{}:{}", line.instance, line.paused ? "resume" : "preempt");
        const char* body = line.paused ? "{}" : R"({"mode":"Pause"})";
        line.paused = !line.paused;
        return line.http.ask("POST", target, body);
    }

    Status read(Line& line) {
        const std::string& drawn = plan_.reads[dice_() % plan_.reads.size()];
        line.asked = Clock::now();
        const size_t at = drawn.find(kNewest);
        if (at == std::string::npos)
            return line.http.ask("GET", drawn);
        return line.http.ask("GET",
                             drawn.substr(0, at) + operation_ + drawn.substr(at + kNewest.size()));
    }

    Status answered(Line& line) {
        BERTH_ASSIGN(std::optional<HttpLine::Reply> reply, line.http.take());
        if (!reply)
            return {};
        if (reply->status < 200 || reply->status > 299)
            return fail(ErrorCode::kFailedPrecondition,
                        fmt::format("berthd answered {} to a request of the bench: {:.300}",
                                    reply->status, reply->body),
                        "Refused");
        if (!line.instance.empty())
            return operation_answered(line, *reply);
        if (is_over())
            return {};
        outcome_.read_ms.push_back(milliseconds_since(line.asked));
        outcome_.body_bytes += reply->body.size();
        return read(line);
    }

    Status operation_answered(Line& line, const HttpLine::Reply& reply) {
        BERTH_ASSIGN(json::value parsed, json::parse(reply.body, "the reply"));
        if (!parsed.is_object())
            return fail(ErrorCode::kCorrupt, "berthd's reply is no operation");
        const json::object& operation = parsed.get_object();
        const std::string state = text_at(operation, "state");
        if (state == "Running") {
            operation_ = line.operation = text_at(operation, "id");
            return line.http.ask("GET", "/v1/operations/" + line.operation + "?wait=10s");
        }
        if (state != "Succeeded")
            return fail(ErrorCode::kFailedPrecondition,
                        "an operation of the bench failed: " + reply.body.substr(0, 300),
                        "Refused");
        operation_ = text_at(operation, "id");
        if (!is_over())
            outcome_.change_ms.push_back(milliseconds_since(line.asked));
        return {};
    }

    const LoadPlan& plan_;
    UniqueFd epoll_;
    std::deque<Line> lines_; // their addresses stay
    Clock::time_point began_;
    std::minstd_rand dice_{1};
    std::string operation_;
    uint64_t changes_ = 0;
    size_t next_line_ = 0;
    LoadOutcome outcome_;
};

} // namespace

Result<LoadOutcome> run_load(const LoadPlan& plan) {
    return Load(plan).run();
}

} // namespace berth::cli::bench
