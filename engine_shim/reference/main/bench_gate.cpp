// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/bench_parts.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

namespace berth::engine {

using fast::FastOptions;
using fast::LookLimits;

namespace {

constexpr uint32_t kRaises = 200;

// A gate that somebody raises at random moments. The engine's thread steps and looks; each time it
// finds the gate closed the device is idle, the time since the raise is kept, and the gate is
// opened again. A page of its own: the device reads the word.
class Gate {
  public:
    Gate() : thread_([this](const std::stop_token& stop) { raise_all(stop); }) {}

    std::atomic<uint32_t>& word() { return page_.word; }
    bool look() {
        if (!closed_.load())
            return true;
        delays_.push_back(seconds_since(raised_));
        page_.word.fetch_add(1);
        closed_.store(false);
        const std::lock_guard lock(mutex_);
        armed_ = delays_.size() < kRaises;
        changed_.notify_all();
        return true;
    }
    void arm() {
        const std::lock_guard lock(mutex_);
        delays_.clear();
        armed_ = true;
        changed_.notify_all();
    }
    const std::vector<double>& delays() const { return delays_; } // the engine's thread

  private:
    void raise_all(const std::stop_token& stop) {
        std::mt19937 random(9);
        std::uniform_int_distribution<int> microseconds(100, 6000);
        std::unique_lock lock(mutex_);
        while (changed_.wait(lock, stop, [this] { return armed_; })) {
            armed_ = false;
            const auto pause = std::chrono::microseconds(microseconds(random));
            if (changed_.wait_for(lock, stop, pause, [&] { return stop.stop_requested(); }))
                return;
            raised_ = Clock::now();
            closed_.store(true);
            page_.word.fetch_add(1);
        }
    }

    struct alignas(4096) Page {
        std::atomic<uint32_t> word = 7;
    };
    Page page_;
    std::mutex mutex_;
    std::condition_variable_any changed_;
    bool armed_ = false;
    std::atomic<bool> closed_ = false;
    Clock::time_point raised_; // before closed_ is set
    std::vector<double> delays_;
    std::jthread thread_; // last: it uses the others
};

} // namespace

Status Bench::gate_way(const char* name, uint32_t batch, const FastOptions& options,
                       const LookLimits& limits) {
    const auto gate = std::make_unique<Gate>();
    const auto items = decode_items(batch, options_.contexts.front());
    BERTH_ASSIGN(const auto fast, model_.remake(options, limits, &gate->word()));
    for (int i = 0; i < 12; ++i) { // paces itself, then records
        BERTH_ASSIGN(const auto outcome, fast->step(items, {}));
        (void)outcome;
    }
    BERTH_TRY(fast->record_now(fast::GraphShelf::rows_for(batch, model_.setting().sequences)));
    BERTH_ASSIGN(const double open, step_seconds(*fast, items, options_.rounds));
    const uint64_t looks = fast->looks();
    uint64_t steps = 0;
    gate->arm();
    const fast::FastModel& model = *fast;
    const LayerHook hook = [&gate](uint32_t) { return gate->look(); };
    while (gate->delays().size() < kRaises && steps < 100 * kRaises && limits.any()) {
        BERTH_ASSIGN(const auto outcome, fast->step(items, hook));
        (void)outcome;
        ++steps;
    }
    const std::vector<double> delays =
        gate->delays().empty() ? std::vector<double>{0} : gate->delays();
    print(
        R"({{"bench":"gate","way":"{}","batch":{},"limit_us":{},"overlap":{},"ms":{:.3f},"raises":{},)"
        R"("delay_us_p50":{:.0f},"delay_us_p99":{:.0f},"delay_us_worst":{:.0f},"looks_a_step":{:.1f},)"
        R"("cut_short":{}}})",
        name, batch, limits.decode.count(), options.overlap, open * 1e3, gate->delays().size(),
        percentile(delays, 0.5) * 1e6, percentile(delays, 0.99) * 1e6, percentile(delays, 1) * 1e6,
        steps == 0 ? 0.0 : static_cast<double>(model.looks() - looks) / static_cast<double>(steps),
        model.cut_short());
    return {};
}

// What looking costs beside one graph of the whole step, and how long after a raise the device is
// idle: pieces that the host waits for, and sections before which the device itself looks.
Status Bench::gate() {
    using std::chrono::microseconds;
    FastOptions pieces, device, device_apart;
    device.device_looks = device_apart.device_looks = true;
    device_apart.overlap = false;
    for (const uint32_t batch : options_.batches) {
        BERTH_TRY(gate_way("none", batch, pieces, {}));
        for (const int64_t limit : {450, 150, 1}) {
            const LookLimits limits{microseconds(limit), microseconds(2 * limit)};
            BERTH_TRY(gate_way("pieces", batch, pieces, limits));
            const Status done = gate_way("device", batch, device, limits);
            if (done)
                continue;
            print(R"({{"bench":"gate","way":"device","batch":{},"failed":"{}"}})", batch,
                  done.error().message);
            BERTH_TRY(gate_way("device", batch, device_apart, limits));
        }
    }
    return {};
}

} // namespace berth::engine
