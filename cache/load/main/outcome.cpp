// SPDX-License-Identifier: Apache-2.0
#include "cache/load/main/outcome.h"

#include "base/json.h"
#include "base/units.h"

#include <unistd.h>

#include <fmt/format.h>

#include <cstdio>

namespace berth {

namespace {

json::array names_json(const std::vector<std::string>& names) {
    return json::array(names.begin(), names.end());
}

double read_gigabytes_per_second(const LoadedSet& set) {
    auto read = set.phases.find("read");
    if (read == set.phases.end() || read->second <= 0)
        return 0;
    return static_cast<double>(set.bytes_read) / 1e6 / read->second;
}

} // namespace

std::string outcome_text(const LoadOutcome& outcome) {
    const LoadedSet& first = outcome.first;
    std::string text;
    std::string from = first.filesystem.empty() ? "a device" : first.filesystem;
    for (const LoadOutcome::Rank& rank : outcome.ranks)
        text += fmt::format(
            "loaded {} of weights ({} tensors) into weight set {}; read at {:.2f} GB/s from {}\n",
            format_bytes(rank.segment_bytes), rank.tensors, rank.id(),
            read_gigabytes_per_second(first), from);
    if (!first.reader.method.empty())
        text += fmt::format("reader: {}\n", first.reader.text());
    for (const auto& [phase, milliseconds] : first.phases)
        text += fmt::format("  {:<12}{:>10.1f} ms\n", phase, milliseconds);
    if (outcome.verified && outcome.different.empty())
        text += "verified: every tensor's bytes are those of its checksum\n";
    for (const std::string& name : outcome.different)
        text += fmt::format("DIFFERENT: tensor '{}' is not what its checksum says\n", name);
    return text;
}

std::string outcome_json(const LoadOutcome& outcome) {
    const LoadedSet& first = outcome.first;
    json::object phases;
    for (const auto& [phase, milliseconds] : first.phases)
        phases[phase] = milliseconds;
    json::array weight_sets;
    for (const LoadOutcome::Rank& rank : outcome.ranks)
        weight_sets.push_back(
            {{"rank", rank.rank}, {"weightSet", rank.id()}, {"segmentBytes", rank.segment_bytes}});
    json::object document = {{"weightSet", outcome.ranks[0].id()},
                             {"fingerprint", outcome.ranks[0].fingerprint},
                             {"segmentBytes", outcome.ranks[0].segment_bytes},
                             {"ranks", std::move(weight_sets)},
                             {"bytesRead", first.bytes_read},
                             {"filesystem", first.filesystem},
                             {"reader",
                              {{"method", first.reader.method},
                               {"reason", first.reader.reason},
                               {"cachedBytes", first.reader.cached_bytes},
                               {"diskBytes", first.reader.disk_bytes},
                               {"streams", first.reader.streams}}},
                             {"gigabytesPerSecond", read_gigabytes_per_second(first)},
                             {"phases", std::move(phases)},
                             {"verified", outcome.verified},
                             {"different", names_json(outcome.different)}};
    return json::serialize(document);
}

Status show_progress(uint64_t done, uint64_t total) {
    if (::isatty(STDERR_FILENO) == 0)
        return {};
    double percent = total > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 0;
    fmt::print(stderr, "\rloading {:5.1f} %  {} of {} ", percent, format_bytes(done),
               format_bytes(total));
    if (done == total)
        fmt::print(stderr, "\n");
    return {};
}

} // namespace berth
