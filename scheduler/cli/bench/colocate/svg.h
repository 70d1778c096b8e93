// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace berth::cli::bench {

// One diagram of lines over two axes. A plain value.
struct Chart {
    struct Line {
        std::string name;
        std::vector<std::pair<double, double>> points; // by x
        bool is_area = false;                          // filled down to 0
        bool is_stepped = false;                       // a value holds until the next point
    };
    std::string title, x_label, y_label;
    bool x_is_logarithmic = false;  // values of 0 and below are left out then
    double x_least = 0, x_most = 0; // equal: as the points have it
    double y_most = 0;              // 0: as the points have it; the least is 0
    std::vector<Line> lines;
};

// A page of SVG 1.1 with the charts below each other, self-contained.
std::string svg_page(const std::vector<Chart>& charts);

} // namespace berth::cli::bench
