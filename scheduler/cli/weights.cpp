// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/progress.h"

#include <fmt/format.h>

#include <filesystem>
#include <sstream>
#include <vector>

namespace berth::cli {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{200};
constexpr std::chrono::minutes kVerifyMax{31};

// What GET /v1/weights says of the load of this model (or folder), if it runs.
std::optional<LoadProgress> progress_of(const AdminClient& client, const std::string& model) {
    auto reply = client.get("/v1/weights");
    if (!reply)
        return std::nullopt;
    auto items = items_of(*reply);
    if (!items)
        return std::nullopt;
    for (const json::value& value : *items) {
        const json::object& item = value.get_object();
        const auto* progress = item.if_contains("progress");
        bool ours = text_at(item, "model") == model || text_at(item, "path") == model;
        if (!ours || progress == nullptr || !progress->is_object())
            continue;
        const json::object& facts = progress->get_object();
        return LoadProgress{text_at(facts, "phase"), number_at(facts, "bytesDone"),
                            number_at(facts, "bytesTotal")};
    }
    return std::nullopt;
}

Result<json::object> wait_for_load(const Session& session, const std::string& id,
                                   const std::string& model) {
    ProgressLine line("loading " + model);
    if (auto first = progress_of(session.client, model))
        line.show(*first);
    return wait_for(session.client, id, kLookEvery, [&] {
        if (auto progress = progress_of(session.client, model))
            line.show(*progress);
    });
}

std::vector<std::string> devices_of(const std::string& list) {
    std::vector<std::string> devices;
    std::istringstream words(list);
    for (std::string one; std::getline(words, one, ',');)
        devices.push_back(one);
    return devices;
}

// What one command asks for: a load, or one for each rank's part.
struct Wish {
    std::string what; // for people
    json::object body;
};

std::vector<Wish> wishes(const ChangeOptions& options, const std::string& model, bool is_path) {
    Wish whole{model, {{is_path ? "path" : "model", model}}};
    if (!options.dtype.empty())
        whole.body["dtype"] = options.dtype;
    if (!options.quantization.empty())
        whole.body["quantization"] = options.quantization;
    if (!options.request_id.empty())
        whole.body["requestId"] = options.request_id;
    if (options.dry_run)
        whole.body["dryRun"] = true;
    const std::vector<std::string> devices = devices_of(options.device);
    if (!options.device.empty())
        whole.body["device"] = options.device;
    if (devices.size() < 2)
        return {whole};
    std::vector<Wish> all(devices.size(), whole);
    for (size_t rank = 0; rank < all.size(); ++rank) {
        all[rank].what = fmt::format("{}, rank {}", model, rank);
        all[rank].body["device"] = devices[rank];
        all[rank].body["rank"] = rank;
        all[rank].body["ranks"] = all.size();
        if (!options.request_id.empty())
            all[rank].body["requestId"] = fmt::format("{}-{}", options.request_id, rank);
    }
    return all;
}

Status tell_load(const Session& session, const Wish& wish, const json::object& operation,
                 bool dry_run, double took_ms) {
    if (session.format == Format::kJson)
        print(pretty_json(operation));
    else if (session.format == Format::kYaml)
        print(yaml_text(operation));
    BERTH_TRY(outcome_of(operation));
    if (session.format != Format::kTable)
        return {};
    const std::string message = text_at(operation, "message");
    if (text_at(operation, "state") == "Running")
        print(fmt::format("{}: loading, operation {} (berth get weights shows how far it is)\n",
                          wish.what, text_at(operation, "id")));
    else if (dry_run)
        print(fmt::format("{}: {}\n", wish.what, message));
    else
        print(fmt::format("{}: {}, in {}\n", wish.what, message.empty() ? "resident" : message,
                          milliseconds_text(took_ms)));
    return {};
}

} // namespace

Status load(const Session& session, const ChangeOptions& options) {
    const bool is_path = options.name.find('/') != std::string::npos;
    std::string model = is_path
                            ? std::filesystem::absolute(options.name).lexically_normal().string()
                            : options.name;
    while (is_path && model.size() > 1 && model.back() == '/')
        model.pop_back();
    const std::vector<Wish> all = wishes(options, model, is_path);
    const auto started = std::chrono::steady_clock::now();
    std::vector<json::object> operations;
    for (const Wish& one : all) {
        BERTH_ASSIGN(json::object operation, begin(session.client, "/v1/weights:load", one.body));
        operations.push_back(std::move(operation));
    }
    for (size_t n = 0; n < all.size(); ++n) {
        if (options.wait) {
            BERTH_ASSIGN(operations[n],
                         wait_for_load(session, text_at(operations[n], "id"), model));
        }
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - started;
        BERTH_TRY(tell_load(session, all[n], operations[n], options.dry_run, took.count()));
    }
    return {};
}

Result<std::string> weight_set_id(const AdminClient& client, const std::string& name) {
    BERTH_ASSIGN(json::value reply, client.get("/v1/weights"));
    BERTH_ASSIGN(json::array items, items_of(reply));
    std::vector<std::string> fitting;
    for (const json::value& value : items) {
        const json::object& item = value.get_object();
        std::string id = text_at(item, "id");
        if (id == name)
            return id;
        if (id.starts_with(name) || text_at(item, "model") == name)
            fitting.push_back(id);
    }
    if (fitting.empty())
        return fail(ErrorCode::kNotFound,
                    fmt::format("no weight set is named '{}': give an id, the start of one or a "
                                "model's name out of 'berth get weights'",
                                name),
                    "NotFound");
    if (fitting.size() > 1)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("'{}' fits {}: give a whole id", name, fmt::join(fitting, ", ")),
                    "Ambiguous");
    return fitting.front();
}

Status verify(const Session& session, const std::string& name, bool deep) {
    BERTH_ASSIGN(std::string id, weight_set_id(session.client, name));
    BERTH_ASSIGN(json::value reply,
                 session.client.post(fmt::format("/v1/weights/{}:verify", http::percent_encode(id)),
                                     json::object{{"deep", deep}}, kVerifyMax));
    if (!reply.is_object())
        return fail(ErrorCode::kCorrupt, "berthd's reply to a verification is no object");
    const json::object& found = reply.get_object();
    uint64_t differ = number_at(found, "mismatchedCount");
    if (session.format == Format::kJson)
        print(pretty_json(reply));
    else if (session.format == Format::kYaml)
        print(yaml_text(reply));
    else
        print(fmt::format("weights/{}: {} tensors, {} checked in {}, {} differ\n", id,
                          number_at(found, "tensors"), format_bytes(number_at(found, "bytes")),
                          milliseconds_text(real_at(found, "ms")), differ));
    if (deep && session.format == Format::kTable)
        print(fmt::format("deep hash {}: {}\n", text_at(found, "deepHash"),
                          text_at(found, "deepVerdict")));
    if (flag_at(found, "ok"))
        return {};
    if (differ == 0)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("weight set {}: its checksums are right for its bytes, but {}; "
                                "evict it with --drop and load it again",
                                id, text_at(found, "deepVerdict")),
                    "DeepHashMismatch");
    std::string names;
    if (const auto* listed = found.if_contains("mismatched"); listed && listed->is_array())
        for (const json::value& one : listed->get_array())
            if (one.is_string())
                names += " " + std::string(std::string_view(one.get_string()));
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} tensors of weight set {} are not what was loaded:{}; evict it and "
                            "load it again",
                            differ, id, names),
                "ChecksumMismatch");
}

} // namespace berth::cli
