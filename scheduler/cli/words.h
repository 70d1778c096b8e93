// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/bench.h"
#include "scheduler/cli/commands.h"

#include <CLI/CLI.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

// Inside scheduler/cli/arguments*.cpp only: how words of the command line become a call.
namespace berth::cli {

// What the options write into; shared by the commands that are made of it.
struct Words {
    std::string admin, token_file, ca_file;
    std::string role;
    std::string format = "table";
    std::string kind, name;
    EventOptions events;
    TopOptions top;
    ChangeOptions change;
    WhatIfOptions what_if;
    PlanOptions plan;
    PolicyOptions policy;
    RolloutOptions rollout;
    std::vector<std::string> files;
    bench::Options bench;
    std::function<Status()> run;

    Format chosen_format() const {
        return format == "json" ? Format::kJson : format == "yaml" ? Format::kYaml : Format::kTable;
    }
    Result<Session> session() const;
};
using WordsPtr = std::shared_ptr<Words>;

// What the command does once all is read. `check` may throw what is wrong with its words together.
void set_run(CLI::App& command, const WordsPtr& words, std::function<Status(const Session&)> run,
             std::function<void()> check = {});
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const WordsPtr& words, std::function<Status(const Session&)> run);
// "" or what is wrong.
std::string check_duration(const std::string& text);
std::string check_bytes(const std::string& text);
// Hold, release, drain, cordon, uncordon, delete.
void add_services(CLI::App& app, const WordsPtr& words);
void add_rollout(CLI::App& app, const WordsPtr& words);
void add_bench(CLI::App& app, const WordsPtr& words);

} // namespace berth::cli
