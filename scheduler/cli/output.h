// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"

#include <string>
#include <string_view>
#include <vector>

// What the program shows: on stdout what was asked for, on stderr everything else.
namespace berth::cli {

enum class Format { kTable, kJson, kYaml };

// Columns as wide as their widest cell; empty cells show as "-". A plain value.
class Table {
  public:
    explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}
    void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    bool empty() const { return rows_.empty(); }
    // Ends with a line end. With `colour`, cells that are a known state are coloured.
    std::string text(bool colour) const;

  private:
    std::vector<std::string> columns_;
    std::vector<std::vector<std::string>> rows_;
};

// Indented by two spaces, ends with a line end; read back by any JSON or YAML reader.
std::string pretty_json(const json::value& value);
std::string compact_json(const json::value& value); // on one line, without its end
std::string yaml_text(const json::value& value);
// An object for people: one field a line, names and units from the fields' names (bytes, ms).
std::string described(const json::object& object);

// 250 -> "250.0 ms".
std::string milliseconds_text(double ms);
// 3'900'000 -> "1h5m".
std::string age_text(uint64_t ms);

// Seconds since 1970 -> "2026-11-29T23:18:01".
std::string utc_text(uint64_t seconds);

void print(std::string_view text);
void print_error(std::string_view text);

// Whether a stream is a terminal, and may be coloured (no NO_COLOR, no dumb terminal).
bool is_terminal(int fd);
bool may_colour(int fd);

} // namespace berth::cli
