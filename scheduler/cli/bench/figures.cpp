// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/figures.h"

#include "base/units.h"
#include "scheduler/cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace berth::cli::bench {

double percentile(std::vector<double> samples, double percent) {
    if (samples.empty())
        return 0;
    std::sort(samples.begin(), samples.end());
    double rank = std::ceil(percent / 100.0 * static_cast<double>(samples.size()));
    auto index = static_cast<size_t>(std::max(1.0, rank)) - 1;
    return samples[std::min(index, samples.size() - 1)];
}

json::object to_json(const Figure& figure) {
    double p50 = percentile(figure.samples, 50);
    json::object line{{"bench", figure.bench},
                      {"figure", figure.name},
                      {"unit", figure.unit},
                      {"rounds", figure.samples.size()},
                      {"p50", p50},
                      {"p99", percentile(figure.samples, 99)},
                      {"min", percentile(figure.samples, 0)},
                      {"max", percentile(figure.samples, 100)},
                      {"floor", nullptr},
                      {"floorIs", figure.floor_is},
                      {"ratio", nullptr},
                      {"covers", figure.covers}};
    double floor = percentile(figure.floor, 50);
    if (floor > 0) {
        line["floor"] = json::object{{"p50", floor}, {"p99", percentile(figure.floor, 99)}};
        line["ratio"] = p50 / floor;
    }
    for (const auto& [name, fact] : figure.facts)
        line[name] = fact;
    return line;
}

void print_figures(const std::vector<Figure>& figures, bool as_json) {
    Table table({"FIGURE", "ROUNDS", "P50", "P99", "FLOOR P50", "RATIO"});
    std::string notes;
    for (const Figure& figure : figures) {
        if (as_json) {
            print(compact_json(to_json(figure)) + "\n");
            continue;
        }
        auto text = [&figure](double value) {
            if (figure.unit == "ms")
                return milliseconds_text(value);
            if (figure.unit == "bytes")
                return format_bytes(static_cast<uint64_t>(value));
            return fmt::format("{:.3f} {}", value, figure.unit);
        };
        double p50 = percentile(figure.samples, 50);
        double floor = percentile(figure.floor, 50);
        table.add({figure.name, std::to_string(figure.samples.size()), text(p50),
                   text(percentile(figure.samples, 99)), floor > 0 ? text(floor) : "",
                   floor > 0 ? fmt::format("{:.2f}", p50 / floor) : ""});
        notes += fmt::format("{}: {}; floor: {}\n", figure.name, figure.covers, figure.floor_is);
        if (!figure.facts.empty())
            notes += fmt::format("  {}\n", compact_json(figure.facts));
    }
    if (!as_json)
        print(table.text(false) + "\n" + notes);
}

} // namespace berth::cli::bench
