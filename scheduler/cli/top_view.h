// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

// What `berth top` shows, as lines. Pure: the same replies give the same lines.
namespace berth::cli {

struct TopPicture {
    json::object node;     // GET /v1/node
    json::array decisions; // the newest, oldest first
    json::array events;    // the newest, oldest first
    // Of each instance since the picture before; nobody is in it in the first one.
    struct Rates {
        double tokens_per_s = 0;
        double pauses_per_s = 0;
    };
    std::map<std::string, Rates> rates;
    std::string time;    // "23:18:01"
    std::string trouble; // why this picture is old; empty: it is not
};

struct TopScreen {
    size_t width = 80;
    size_t height = 24; // lines, the last one without a line end
    bool colour = false;
    bool keys = false; // say how to leave
};

// At most screen.height lines, none wider than screen.width columns.
std::vector<std::string> top_lines(const TopPicture& picture, const TopScreen& screen);

// What has been done between two pictures of the node that were taken `seconds` apart.
std::map<std::string, TopPicture::Rates> rates_between(const json::object& before,
                                                       const json::object& after, double seconds);

} // namespace berth::cli
