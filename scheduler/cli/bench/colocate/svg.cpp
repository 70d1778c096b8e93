// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace berth::cli::bench {

namespace {

constexpr double kWidth = 860, kHeight = 340; // of one chart
constexpr double kLeft = 64, kRight = 190, kTop = 36, kBottom = 48;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
// Okabe and Ito's colours, which the colour-blind tell apart, and one more.
constexpr std::array<const char*, 8> kColours{"#000000", "#0072b2", "#d55e00", "#009e73",
                                              "#cc79a7", "#e69f00", "#56b4e9", "#8c564b"};

std::string escaped(std::string_view text) {
    std::string out;
    for (const char letter : text) {
        if (letter == '<')
            out += "&lt;";
        else if (letter == '>')
            out += "&gt;";
        else if (letter == '&')
            out += "&amp;";
        else if (letter == '"')
            out += "&quot;";
        else
            out += letter;
    }
    return out;
}

std::string label(double value) {
    return fmt::format("{:g}", std::abs(value) < 1e-12 ? 0.0 : value);
}

// Five or so round numbers within the range.
std::vector<double> linear_ticks(double least, double most) {
    const double rough = (most - least) / 5;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (double round : {1.0, 2.0, 5.0})
        if (round * power >= rough) {
            step = round * power;
            break;
        }
    std::vector<double> ticks;
    for (double at = std::ceil(least / step) * step; at <= most + step * 1e-9; at += step)
        ticks.push_back(at);
    return ticks;
}

std::vector<double> logarithmic_ticks(double least, double most) {
    std::vector<double> ticks;
    for (double power = std::pow(10, std::floor(std::log10(least))); power <= most; power *= 10)
        for (double round : {1.0, 2.0, 5.0})
            if (round * power >= least * 0.999 && round * power <= most * 1.001)
                ticks.push_back(round * power);
    return ticks;
}

// From values to places on the page.
class Axes {
  public:
    explicit Axes(const Chart& chart) : logarithmic_(chart.x_is_logarithmic) {
        bool any = false;
        for (const Chart::Line& line : chart.lines)
            for (const auto& [x, y] : line.points) {
                if (!shows(x))
                    continue;
                least_ = any ? std::min(least_, x) : x;
                most_ = any ? std::max(most_, x) : x;
                y_most_ = std::max(y_most_, y);
                any = true;
            }
        if (chart.x_most > chart.x_least) {
            least_ = shows(chart.x_least) ? chart.x_least : least_;
            most_ = chart.x_most;
        }
        if (chart.y_most > 0)
            y_most_ = chart.y_most;
        if (most_ <= least_) {
            most_ = least_ + (least_ > 0 ? least_ : 1);
        }
        if (logarithmic_) // without a point that shows there is none above 0
            least_ = std::max(least_, most_ * 1e-6);
        y_most_ = y_most_ > 0 ? y_most_ : 1;
    }

    bool shows(double x) const { return std::isfinite(x) && (!logarithmic_ || x > 0); }
    double x(double value) const {
        const double part = logarithmic_ ? std::log(value / least_) / std::log(most_ / least_)
                                         : (value - least_) / (most_ - least_);
        return kLeft + kPlotWidth * std::clamp(part, 0.0, 1.0);
    }
    double y(double value) const {
        return kTop + kPlotHeight * (1 - std::clamp(value / y_most_, 0.0, 1.0));
    }
    std::vector<double> x_ticks() const {
        return logarithmic_ ? logarithmic_ticks(least_, most_) : linear_ticks(least_, most_);
    }
    std::vector<double> y_ticks() const { return linear_ticks(0, y_most_); }

  private:
    bool logarithmic_;
    double least_ = 0, most_ = 0, y_most_ = 0;
};

std::string text_at_place(double x, double y, const char* anchor, std::string_view text,
                          const char* more = "") {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                       anchor, more, escaped(text));
}

std::string frame(const Chart& chart, const Axes& axes) {
    std::string out = text_at_place(kLeft, kTop - 14, "start", chart.title,
                                    " font-weight=\"bold\" font-size=\"14\"");
    for (const double tick : axes.x_ticks()) {
        const double x = axes.x(tick);
        out += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"#dddddd\"/>\n", x, kTop,
                           kTop + kPlotHeight);
        out += text_at_place(x, kTop + kPlotHeight + 16, "middle", label(tick));
    }
    for (const double tick : axes.y_ticks()) {
        const double y = axes.y(tick);
        out += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#dddddd\"/>\n", kLeft, y,
                           kLeft + kPlotWidth);
        out += text_at_place(kLeft - 6, y + 4, "end", label(tick));
    }
    out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" "
                       "stroke=\"#888888\"/>\n",
                       kLeft, kTop, kPlotWidth, kPlotHeight);
    out += text_at_place(kLeft + kPlotWidth / 2, kHeight - 12, "middle", chart.x_label);
    const std::string turned =
        fmt::format(" transform=\"rotate(-90 16 {})\"", kTop + kPlotHeight / 2);
    return out + text_at_place(16, kTop + kPlotHeight / 2, "middle", chart.y_label, turned.c_str());
}

std::string line_path(const Chart::Line& line, const Axes& axes) {
    std::string path;
    double y_before = 0, x_first = 0, x_last = 0;
    for (const auto& [value_x, value_y] : line.points) {
        if (!axes.shows(value_x))
            continue;
        const double x = axes.x(value_x);
        const double y = axes.y(value_y);
        if (path.empty()) {
            path = fmt::format("M{:.1f} {:.1f}", x, y);
            x_first = x;
        } else if (line.is_stepped) {
            path += fmt::format("L{:.1f} {:.1f}L{:.1f} {:.1f}", x, y_before, x, y);
        } else {
            path += fmt::format("L{:.1f} {:.1f}", x, y);
        }
        y_before = y;
        x_last = x;
    }
    if (line.is_area && !path.empty())
        path += fmt::format("L{:.1f} {:.1f}L{:.1f} {:.1f}Z", x_last, axes.y(0), x_first, axes.y(0));
    return path;
}

std::string chart_text(const Chart& chart) {
    const Axes axes(chart);
    std::string out = frame(chart, axes);
    for (size_t n = 0; n < chart.lines.size(); ++n) {
        const Chart::Line& line = chart.lines[n];
        const char* colour = kColours[n % kColours.size()];
        const std::string path = line_path(line, axes);
        if (!path.empty())
            out += fmt::format("<path d=\"{}\" fill=\"{}\" fill-opacity=\"0.25\" stroke=\"{}\" "
                               "stroke-width=\"1.5\"/>\n",
                               path, line.is_area ? colour : "none", colour);
        const double y = kTop + 8 + 18 * static_cast<double>(n);
        const double x = kLeft + kPlotWidth + 12;
        out += fmt::format("<path d=\"M{:.1f} {:.1f}h18\" stroke=\"{}\" stroke-width=\"3\"/>\n", x,
                           y, colour);
        out += text_at_place(x + 24, y + 4, "start", line.name);
    }
    return out;
}

} // namespace

std::string svg_page(const std::vector<Chart>& charts) {
    const double height = kHeight * static_cast<double>(charts.size());
    std::string out = fmt::format(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
        kWidth, height);
    for (size_t n = 0; n < charts.size(); ++n)
        out += fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n",
                           kHeight * static_cast<double>(n), chart_text(charts[n]));
    return out + "</svg>\n";
}

} // namespace berth::cli::bench
