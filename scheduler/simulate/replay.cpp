// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/replay.h"

#include "scheduler/simulate/replay_node.h"

#include <algorithm>
#include <cstdio>

namespace berth::simulate {

namespace {

Percentiles percentiles_of(std::vector<double> values) {
    Percentiles out;
    if (values.empty())
        return out;
    std::sort(values.begin(), values.end());
    auto at = [&values](double part) {
        return values[static_cast<size_t>(static_cast<double>(values.size() - 1) * part)];
    };
    out.p50 = at(0.5);
    out.p90 = at(0.9);
    out.p99 = at(0.99);
    out.most = values.back();
    return out;
}

std::string figure(double value, const char* unit) {
    char text[64];
    std::snprintf(text, sizeof text, value < 10 ? "%.2f%s" : "%.0f%s", value, unit);
    return text;
}

std::string words(const Percentiles& of) {
    return figure(of.p50, "") + " / " + figure(of.p90, "") + " / " + figure(of.p99, " ms") +
           " (the longest " + figure(of.most, " ms)");
}

} // namespace

Result<ReplayReport> replay(const policies::Documents& documents,
                            const std::vector<Arrival>& arrivals, const ServiceModel& model) {
    if (arrivals.empty())
        return fail(ErrorCode::kInvalidArgument, "the trace has no arrivals");
    policies::Documents alone = documents;
    std::erase_if(alone.instances, [&documents](const policies::InstanceSpec& instance) {
        return !ReplayNode::is_online(documents, instance);
    });
    if (alone.instances.empty())
        return fail(ErrorCode::kInvalidArgument,
                    "the policy has no instance that serves requests: one of driver berth, in a "
                    "class that preempts others and may not be preempted (as the class online)",
                    "NoOnlineInstance");
    ReplayNode beside(ReplayNode::shape_of(documents, model), model);
    ReplayNode by_itself(ReplayNode::shape_of(alone, model), model);
    const std::vector<double> with = beside.play(arrivals);
    const std::vector<double> without = by_itself.play(arrivals);
    ReplayReport report;
    report.requests = arrivals.size();
    std::vector<double> served, served_alone, added;
    for (size_t n = 0; n < arrivals.size(); ++n) {
        report.not_served += with[n] < 0 ? 1 : 0;
        if (with[n] >= 0)
            served.push_back(with[n]);
        if (without[n] >= 0)
            served_alone.push_back(without[n]);
        if (with[n] >= 0 && without[n] >= 0)
            added.push_back(std::max(0.0, with[n] - without[n]));
    }
    report.ttft_ms = percentiles_of(std::move(served));
    report.ttft_alone_ms = percentiles_of(std::move(served_alone));
    report.ttft_added_ms = percentiles_of(std::move(added));
    beside.fill(report);
    return report;
}

std::string to_text(const ReplayReport& report) {
    std::string text = std::to_string(report.requests) + " requests in " +
                       figure(report.seconds / 60, " minutes") + " of the node's time";
    text += report.not_served == 0
                ? "; all were served.\n"
                : "; " + std::to_string(report.not_served) + " were never served.\n";
    text += "\nTime to the first token, at 50 / 90 / 99 percent:\n";
    text += "  with batch beside it   " + words(report.ttft_ms) + "\n";
    text += "  online alone           " + words(report.ttft_alone_ms) + "\n";
    text += "  added by batch         " + words(report.ttft_added_ms) + "\n";
    text += "\nBatch was at work for " + figure(report.batch_hours, " instance hours");
    for (const auto& [name, hours] : report.batch_hours_by_instance)
        text += "\n  " + name + "  " + figure(hours, " h");
    text += "\n\nIt gave way by its gate " + std::to_string(report.gate_closings) +
            " times, and was preempted";
    if (report.preemptions.empty())
        text += " never";
    for (const auto& [rung, count] : report.preemptions)
        text += "\n  " + rung + "  " + std::to_string(count) + " times";
    text += "\n";
    if (!report.waits.empty())
        text += "\nWho waited, from the node's start on:\n";
    for (const auto& [name, wait] : report.waits)
        text += "  " + name + "  " + figure(wait.total_seconds, " s") + " in all, " +
                figure(wait.longest_seconds, " s") + " at most" +
                (wait.last_reason.empty() ? "" : "; the last reason: " + wait.last_reason) + "\n";
    return text;
}

} // namespace berth::simulate
