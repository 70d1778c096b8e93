// SPDX-License-Identifier: Apache-2.0
// What scenarios say of the planner: nodes described line by line, clocks, reports.
#include "tests/node/scenario_runner.h"
#include "tests/node/scenario_words.h"

#include <chrono>

namespace berth::node::test {

namespace {

std::string rest_of(const std::vector<std::string>& words, size_t from) {
    std::string text;
    for (size_t n = from; n < words.size(); ++n)
        text += (text.empty() ? "" : " ") + words[n];
    return text;
}

// "class online model tiny request 512Mi limit 1Gi on host-0 slo 200ms tenant a devices 2 listen
// word --new"
std::string instance_yaml(const std::string& name, const std::vector<std::string>& words) {
    const std::string model = word_after(words, "model", "");
    const std::string devices = word_after(words, "on", "");
    std::string text = "kind: Instance\nmetadata: {name: " + name + "}\nspec:\n";
    if (!model.empty())
        text += "  model: " + model + "\n";
    text += "  priorityClassName: " + word_after(words, "class", "batch") + "\n";
    text +=
        "  resources: {requests: {memory: " + word_after(words, "request", "0") +
        "}, limits: {memory: " + word_after(words, "limit", word_after(words, "request", "1Gi")) +
        "}}\n";
    if (!devices.empty())
        text += "  devices: [" + devices + "]\n";
    if (has(words, "slo"))
        text += "  slo: {ttft: " + word_after(words, "slo", "") + ", percentile: 99}\n";
    if (has(words, "tenant"))
        text += "  tenant: " + word_after(words, "tenant", "") + "\n";
    if (has(words, "devices"))
        text += "  deviceCount: " + word_after(words, "devices", "1") + "\n";
    const bool process = model.empty() || has(words, "process");
    text += std::string("  engine: {driver: ") + (process ? "process" : "berth") + ", command: [e";
    if (has(words, "word"))
        text += ", " + word_after(words, "word", "");
    return text + (has(words, "listen") ? "], listen: \"127.0.0.1:8000\"}\n" : "]}\n");
}

int64_t unix_seconds(const std::string& date, const std::string& time) {
    using namespace std::chrono;
    const year_month_day day{year(std::stoi(date.substr(0, 4))),
                             month(static_cast<unsigned>(std::stoi(date.substr(5, 2)))),
                             std::chrono::day(static_cast<unsigned>(std::stoi(date.substr(8, 2))))};
    const auto at =
        sys_days(day) + hours(std::stoi(time.substr(0, 2))) + minutes(std::stoi(time.substr(3, 2)));
    return duration_cast<seconds>(at.time_since_epoch()).count();
}

} // namespace

// Parts of the documents; they hold from the next "when applied" on.
std::optional<std::string> Runner::given_planner(const Words& words) {
    if (words[0] == "class") { // NAME VALUE [preempts] [fixed]
        classes_[words[1]] =
            "    - {name: " + words[1] + ", value: " + words[2] +
            (has(words, "preempts") ? ", preemptionPolicy: PreemptLowerPriority"
                                    : ", preemptionPolicy: Never") +
            (has(words, "fixed") ? ", preemptible: false}\n" : ", preemptible: true}\n");
        return "";
    }
    if (words[0] == "policy") { // KEY: VALUE
        policy_[words[1]] = "  " + rest_of(words, 1) + "\n";
        return "";
    }
    if (words[0] == "model") {
        models_[words[1]] =
            "kind: Model\nmetadata: {name: " + words[1] + "}\nspec: {path: /models/" + words[1] +
            (has(words, "pinned") ? ", pin: true" : "") +
            (has(words, "ranks") ? ", tensorParallel: " + word_after(words, "ranks", "1") : "") +
            "}\n";
        return "";
    }
    if (words[0] == "instance") {
        described_[words[1]] = instance_yaml(words[1], words);
        return "";
    }
    if (words[0] == "instances") { // PREFIX COUNT ...
        for (int n = 0; n < std::stoi(words[2]); ++n)
            described_[words[1] + std::to_string(n)] =
                instance_yaml(words[1] + std::to_string(n), words);
        return "";
    }
    if (words[0] == "standby") { // NAME of INSTANCE
        described_[words[1]] = "kind: Instance\nmetadata: {name: " + words[1] +
                               "}\nspec: {standbyOf: " + word_after(words, "of", "") + "}\n";
        return "";
    }
    if (words[0] == "no") { // instance NAME
        described_.erase(words[2]);
        return "";
    }
    if (words[0] == "cordoned") {
        DeviceSeen seen{DeviceId(words[1]), DeviceKind::kHost, "host", size_of(words[2])};
        seen.cordoned = true;
        seen.cordon_reason = "bad memory";
        return event(seen);
    }
    return std::nullopt;
}

Result<policies::Documents> Runner::described() const {
    std::string text = "kind: ColocationPolicy\nmetadata: {name: p}\nspec:\n";
    if (!classes_.empty())
        text += "  priorityClasses:\n";
    for (const auto& [name, one] : classes_)
        text += one;
    for (const auto& [key, one] : policy_)
        text += one;
    if (classes_.empty() && policy_.empty())
        text += "  mode: Enforce\n";
    for (const auto& [name, one] : models_)
        text += "---\n" + one;
    for (const auto& [name, one] : described_)
        text += "---\n" + one;
    return policies::parse_documents(text, "scenario.yaml");
}

std::string Runner::apply_described() {
    Result<policies::Documents> read = described();
    if (!read)
        return read.error().message;
    documents_ = *read;
    return event(DocumentsApplied{*read});
}

std::optional<std::string> Runner::when_planner(const Words& words) {
    if (words[0] == "applied" && words.size() == 1)
        return apply_described();
    if (words[0] == "all") // is running: engines and loaders do what they are asked
        return drive();
    if (words[0] == "clock")
        return event(WallClockTold{unix_seconds(words[1], words[2]), 0});
    if (at(words, 1) != "reports" || !is_instance(words[0]))
        return std::nullopt;
    EngineReport report;
    report.instance = InstanceName(words[0]);
    report.counters.requests_waiting = std::stoull(word_after(words, "waiting", "0"));
    report.counters.requests_running = std::stoull(word_after(words, "running", "0"));
    report.counters.short_of_memory = std::stoull(word_after(words, "short", "0"));
    const auto ms = [&words](const std::string& word) {
        return std::chrono::duration<double, std::milli>(time_of(word_after(words, word, "0ms")))
            .count();
    };
    report.counters.ttft_ms.fill(ms("ttft"));
    report.counters.tpot_ms.fill(ms("tpot"));
    return event(report);
}

std::optional<std::string> Runner::then_planner(const Words& words, const std::string& rest) {
    if (words.size() < 2 || !is_instance(words[0]))
        return std::nullopt;
    const Instance& i = state_.instances.at(InstanceName(words[0]));
    if (words[1] == "because") {
        const std::string wanted = rest.substr(rest.find("because") + 8);
        return i.message.find(wanted) != std::string::npos ? "" : "it says: " + i.message;
    }
    if (words[1] == "on") {
        std::string devices;
        for (const DeviceId& device : i.devices)
            devices += (devices.empty() ? "" : ",") + device.value;
        return devices == words[2] ? "" : "it is on " + devices;
    }
    if (words[1] == "starves")
        return i.starving ? "" : "it does not";
    return std::nullopt;
}

} // namespace berth::node::test
