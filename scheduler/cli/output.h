// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

// How results look: tables for people, JSON and YAML for programs.
namespace berth::cli {

enum class Format { kTable, kJson, kYaml };
enum class Colour { kNone, kGood, kBusy, kBad, kBold };

struct Output {
    Format format = Format::kTable;
    bool colour = false; // of stdout

    bool is_table() const { return format == Format::kTable; }
    // In JSON or YAML, whichever was asked for.
    void print(const json::value& value) const;
};

// Whether colour may be written to `stream`: a terminal, and NO_COLOR is not set.
bool may_colour(std::FILE* stream);

std::string paint(std::string_view text, Colour colour, bool enabled);
// Green for Running, yellow while something is under way or held, red for failures.
Colour state_colour(std::string_view state);

// Columns as wide as their widest cell, two blanks between them. Cells may be painted.
class Table {
  public:
    struct Cell {
        std::string text;
        Colour colour = Colour::kNone;
        bool to_the_right = false;
        Cell(std::string of) : text(std::move(of)) {}
        Cell(const char* of) : text(of) {}
        Cell(std::string of, Colour in) : text(std::move(of)), colour(in) {}
        static Cell figure(std::string of) {
            Cell cell(std::move(of));
            cell.to_the_right = true;
            return cell;
        }
    };
    explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
    void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
    bool empty() const { return rows_.empty(); }
    // "-" stands for an empty cell; columns that are empty in every row are left out.
    std::string render(bool colour) const;

  private:
    std::vector<std::string> header_;
    std::vector<std::vector<Cell>> rows_;
};

// Characters that a terminal shows for UTF-8 text of single-width letters.
size_t shown_width(std::string_view text);

std::string pretty_json(const json::value& value);
std::string to_yaml(const json::value& value);

// Fields of replies, read leniently: what an older or newer daemon does not send is empty or 0.
const json::value* field(const json::value& of, std::string_view name);
std::string text(const json::value& of, std::string_view name);
double number(const json::value& of, std::string_view name);
bool flag(const json::value& of, std::string_view name);
// "24.0 GiB", or "" for nothing.
std::string bytes(const json::value& of, std::string_view name);
// "1.25 s" out of a field of milliseconds, or "".
std::string duration(const json::value& of, std::string_view name);
// The array "items"; empty when there is none.
const json::array& items(const json::value& of);

} // namespace berth::cli
