// SPDX-License-Identifier: Apache-2.0
#include "base/http/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace berth::http {

namespace {

std::vector<std::string_view> split(std::string_view path) {
    std::vector<std::string_view> segments;
    if (path.starts_with('/'))
        path.remove_prefix(1);
    for (;;) {
        size_t slash = path.find('/');
        segments.push_back(path.substr(0, slash));
        if (slash == std::string_view::npos)
            return segments;
        path.remove_prefix(slash + 1);
    }
}

} // namespace

std::vector<Router::Segment> Router::parse_template(std::string_view path_template) {
    auto malformed = [&](std::string_view why) {
        throw std::invalid_argument(fmt::format("path template '{}': {}", path_template, why));
    };
    if (!path_template.starts_with('/'))
        malformed("must begin with '/'");
    std::vector<Segment> segments;
    for (std::string_view part : split(path_template)) {
        Segment segment;
        if (part.starts_with('{')) {
            size_t end = part.find('}');
            if (end == std::string_view::npos || end == 1)
                malformed("a parameter needs a name and a '}'");
            segment.name = part.substr(1, end - 1);
            segment.text = part.substr(end + 1);
            segment.kind = segment.text.empty() ? SegmentKind::kParameter : SegmentKind::kVerb;
            if (!segment.text.empty() && (segment.text.size() < 2 || segment.text.front() != ':'))
                malformed("after a parameter only ':verb' may follow");
        } else {
            segment.text = part;
        }
        segments.push_back(std::move(segment));
    }
    return segments;
}

bool Router::fits(const Segment& segment, std::string_view text) {
    switch (segment.kind) {
    case SegmentKind::kLiteral:
        return text == segment.text;
    case SegmentKind::kVerb:
        return text.size() > segment.text.size() && text.ends_with(segment.text);
    case SegmentKind::kParameter:
        return !text.empty();
    }
    return false;
}

Router::Endpoint& Router::slot(std::string_view method, std::string_view path_template) {
    std::vector<Segment> segments = parse_template(path_template);
    Route* route = nullptr;
    for (const auto& known : routes_)
        if (known->path_template == path_template)
            route = known.get();
    if (route == nullptr) {
        routes_.push_back(std::make_unique<Route>());
        route = routes_.back().get();
        route->path_template = path_template;
        route->segments = std::move(segments);
    }
    auto [place, added] = route->methods.try_emplace(std::string(method));
    if (!added)
        throw std::invalid_argument(fmt::format("{} {} is routed twice", method, path_template));
    return place->second;
}

void Router::add(std::string_view method, std::string_view path_template, Handler handler) {
    slot(method, path_template).plain = std::move(handler);
}

void Router::add_stream(std::string_view method, std::string_view path_template,
                        StreamHandler handler) {
    slot(method, path_template).stream = std::move(handler);
}

Router::Match Router::match(std::string_view method, std::string_view path) const {
    Match match;
    std::vector<std::string_view> parts = split(path);
    const Route* best = nullptr;
    auto kinds_less = [](const Segment& a, const Segment& b) { return a.kind < b.kind; };
    for (const auto& route : routes_) {
        if (!std::equal(route->segments.begin(), route->segments.end(), parts.begin(), parts.end(),
                        fits))
            continue;
        if (best == nullptr ||
            std::lexicographical_compare(route->segments.begin(), route->segments.end(),
                                         best->segments.begin(), best->segments.end(), kinds_less))
            best = route.get();
    }
    if (best == nullptr)
        return match;
    match.path_template = best->path_template;
    for (size_t i = 0; i < parts.size(); ++i) {
        const Segment& segment = best->segments[i];
        if (segment.kind == SegmentKind::kLiteral)
            continue;
        auto decoded = percent_decode(parts[i].substr(0, parts[i].size() - segment.text.size()));
        if (!decoded) {
            match.outcome = Outcome::kBadPath;
            match.error = decoded.error();
            return match;
        }
        match.params[segment.name] = std::move(*decoded);
    }
    auto found = best->methods.find(method);
    if (found == best->methods.end() && method == "HEAD")
        found = best->methods.find("GET");
    if (found != best->methods.end()) {
        match.outcome = Outcome::kFound;
        match.endpoint = &found->second;
        return match;
    }
    match.outcome = Outcome::kMethodNotAllowed;
    for (const auto& [name, endpoint] : best->methods) {
        match.allow += fmt::format("{}{}", match.allow.empty() ? "" : ", ", name);
        if (name == "GET" && !best->methods.contains("HEAD"))
            match.allow += ", HEAD";
    }
    return match;
}

} // namespace berth::http
