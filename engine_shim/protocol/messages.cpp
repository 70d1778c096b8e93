// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/protocol/messages.h"

#include "base/json.h"
#include "engine_shim/protocol/message_fields.h"

#include <fmt/format.h>

#include <array>
#include <concepts>
#include <limits>
#include <utility>

namespace berth::protocol {

namespace {

// An error's text is for people; one that would not fit a packet is cut.
constexpr size_t kErrorTextMax = size_t{32} << 10;
constexpr size_t kListMax = 4096;

constexpr std::array<std::string_view, 5> kStateNames = {"Starting", "Ready", "Draining",
                                                         "Succeeded", "Failed"};
constexpr std::array<std::string_view, 8> kCommandNames = {"Pause", "Resume", "Offload", "Restore",
                                                           "Stop",  "Shrink", "Grow",    "Serve"};

// In the order of Message's alternatives.
constexpr std::array<std::string_view, std::variant_size_v<Message>> kTypeNames = {
    "hello",   "welcome",      "attach",  "progress",     "attached", "state",
    "command", "command_done", "report",  "failed",       "planned",  "go",
    "sealed",  "kept",         "publish", "private_load", "release",  "canary"};

// Length of the well-formed UTF-8 sequence at the start of `text`, 0 if there is none.
size_t utf8_length(std::string_view text) {
    auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    unsigned char lead = byte(0);
    if (lead < 0x80)
        return 1;
    size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                    : (lead & 0xF0) == 0xE0        ? 3
                    : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                   : 0;
    if (length == 0 || text.size() < length)
        return 0;
    for (size_t i = 1; i < length; ++i)
        if ((byte(i) & 0xC0) != 0x80)
            return 0;
    bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
    bool outside = (lead == 0xED && byte(1) > 0x9F) || (lead == 0xF4 && byte(1) > 0x8F);
    return overlong || outside ? 0 : length;
}

// File names are bytes, JSON is UTF-8: what is not becomes U+FFFD, or the peer would refuse the
// whole message.
boost::json::string json_text(std::string_view text) {
    boost::json::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        size_t length = utf8_length(text);
        if (length == 0)
            out.append("\xEF\xBF\xBD");
        else
            out.append(boost::json::string_view(text.data(), length));
        text.remove_prefix(length == 0 ? 1 : length);
    }
    return out;
}

class Writer {
  public:
    explicit Writer(json::object& into) : into_(into) {}

    void operator()(const char* name, const std::string& from) { into_[name] = json_text(from); }
    void operator()(const char* name, bool from) { into_[name] = from; }
    template <std::integral T>
        requires(!std::same_as<T, bool>)
    void operator()(const char* name, T from) {
        into_[name] = from;
    }
    void operator()(const char* name, EngineState from) { into_[name] = view(to_string(from)); }
    void operator()(const char* name, CommandKind from) { into_[name] = view(to_string(from)); }
    void operator()(const char* name, const std::vector<uint64_t>& from) {
        into_[name] = json::array(from.begin(), from.end());
    }
    void operator()(const char* name, const Phases& from) {
        json::object written;
        for (const auto& [phase, milliseconds] : from)
            written[json_text(phase)] = milliseconds;
        into_[name] = std::move(written);
    }
    void operator()(const char* name, const Environment& from) {
        json::object written;
        Writer inner(written);
        fields(inner, from);
        into_[name] = std::move(written);
    }
    void operator()(const char* name, const Error& from) {
        Error cut = from;
        if (cut.message.size() > kErrorTextMax)
            cut.message = cut.message.substr(0, kErrorTextMax) + " [...]";
        json::value written = json::from_error(cut);
        for (auto& [key, text] : written.as_object())
            text = json_text(view_of(text.as_string()));
        into_[name] = std::move(written);
    }
    void operator()(const char* name, const std::optional<Error>& from) {
        if (from)
            (*this)(name, *from);
    }

  private:
    static boost::json::string_view view(std::string_view text) {
        return {text.data(), text.size()};
    }
    static std::string view_of(const boost::json::string& text) {
        return {text.data(), text.size()};
    }
    json::object& into_;
};

// Absent fields keep the message's own default; enumerations have none and must be there.
class FieldReader {
  public:
    explicit FieldReader(json::Reader& from) : from_(from) {}

    void operator()(const char* name, std::string& to) { to = from_.string(name, to); }
    void operator()(const char* name, bool& to) { to = from_.boolean(name, to); }
    void operator()(const char* name, uint64_t& to) { to = from_.unsigned_integer(name, to); }
    void operator()(const char* name, int64_t& to) { to = from_.integer(name, to); }
    void operator()(const char* name, int& to) {
        int64_t wide = from_.integer(name, to);
        if (std::in_range<int>(wide))
            to = static_cast<int>(wide);
        else
            from_.refuse(name, fmt::format("{} does not fit in 32 bits", wide));
    }
    void operator()(const char* name, uint32_t& to) {
        uint64_t wide = from_.unsigned_integer(name, to);
        if (std::in_range<uint32_t>(wide))
            to = static_cast<uint32_t>(wide);
        else
            from_.refuse(name, fmt::format("{} does not fit in 32 bits", wide));
    }
    void operator()(const char* name, EngineState& to) { one_of(name, kStateNames, to); }
    void operator()(const char* name, CommandKind& to) { one_of(name, kCommandNames, to); }
    void operator()(const char* name, std::vector<uint64_t>& to) {
        const json::value* found = from_.any(name);
        if (found == nullptr)
            return;
        const json::array* list = found->if_array();
        if (list == nullptr || list->size() > kListMax)
            return refuse_kind(name, "an array of at most 4096 numbers", *found);
        for (const json::value& item : *list) {
            if (const int64_t* number = item.if_int64(); number != nullptr && *number >= 0)
                to.push_back(static_cast<uint64_t>(*number));
            else if (const uint64_t* large = item.if_uint64())
                to.push_back(*large);
            else
                return refuse_kind(name, "whole numbers of zero or more in the array", item);
        }
    }
    void operator()(const char* name, Phases& to) {
        const json::value* found = from_.any(name);
        if (found == nullptr)
            return;
        const json::object* phases = found->if_object();
        if (phases == nullptr || phases->size() > kListMax)
            return refuse_kind(name, "an object of at most 4096 numbers", *found);
        for (const auto& [phase, milliseconds] : *phases) {
            if (!milliseconds.is_number())
                return refuse_kind(name, "a number for each phase", milliseconds);
            to[std::string(phase)] = milliseconds.to_number<double>();
        }
    }
    void operator()(const char* name, Environment& to) {
        const json::value* found = from_.any(name);
        if (found == nullptr)
            return;
        json::Reader inner(*found, name);
        inner.allow_unknown();
        FieldReader reader(inner);
        fields(reader, to);
        if (Status read = inner.finish(); !read)
            from_.refuse(name, read.error().message);
    }
    void operator()(const char* name, Error& to) {
        const json::value* found = from_.any(name);
        if (found == nullptr)
            return from_.refuse(name, "is missing");
        if (!found->is_object())
            return refuse_kind(name, "an object with code, reason and message", *found);
        to = json::to_error(*found);
    }
    void operator()(const char* name, std::optional<Error>& to) {
        const json::value* found = from_.any(name);
        if (found == nullptr || found->is_null())
            return;
        to.emplace();
        (*this)(name, *to);
    }

  private:
    void refuse_kind(const char* name, std::string_view expected, const json::value& found) {
        from_.refuse(name, fmt::format("expected {}, found {}", expected, json::kind_name(found)));
    }
    template <typename Enum, size_t N>
    void one_of(const char* name, const std::array<std::string_view, N>& names, Enum& to) {
        std::string text = from_.string(name);
        for (size_t i = 0; i < N; ++i)
            if (names[i] == text) {
                to = static_cast<Enum>(i);
                return;
            }
        from_.refuse(name, fmt::format("'{}' is not one of {}", text, fmt::join(names, ", ")));
    }
    json::Reader& from_;
};

template <typename M>
Result<Message> read_body(json::Reader& reader) {
    M message;
    message.id = reader.unsigned_integer("id", 0);
    FieldReader field_reader(reader);
    fields(field_reader, message);
    BERTH_TRY(reader.finish());
    return Message(std::move(message));
}

template <size_t... I>
Result<Message> read_type(size_t type, json::Reader& reader, std::index_sequence<I...>) {
    using Read = Result<Message> (*)(json::Reader&);
    constexpr std::array<Read, sizeof...(I)> readers = {
        &read_body<std::variant_alternative_t<I, Message>>...};
    return readers[type](reader);
}

} // namespace

std::string_view to_string(EngineState state) {
    return kStateNames[static_cast<size_t>(state)];
}
std::string_view to_string(CommandKind kind) {
    return kCommandNames[static_cast<size_t>(kind)];
}

std::optional<EngineState> engine_state_from(std::string_view name) {
    for (size_t i = 0; i < kStateNames.size(); ++i)
        if (kStateNames[i] == name)
            return static_cast<EngineState>(i);
    return std::nullopt;
}

std::string environment_json(const Environment& environment) {
    json::object written;
    Writer writer(written);
    fields(writer, environment);
    return json::serialize(written);
}

Result<Environment> environment_from_json(std::string_view text) {
    BERTH_ASSIGN(json::value document, json::parse(text, "the environment"));
    json::Reader reader(document, "the environment");
    reader.allow_unknown();
    Environment environment;
    FieldReader field_reader(reader);
    fields(field_reader, environment);
    BERTH_TRY(reader.finish());
    return environment;
}

std::string encode(const Message& message) {
    json::object written;
    written["v"] = kVersion;
    std::string_view type = kTypeNames[message.index()];
    written["type"] = boost::json::string_view(type.data(), type.size());
    std::visit(
        [&](const auto& body) {
            written["id"] = body.id;
            Writer writer(written);
            fields(writer, body);
        },
        message);
    return json::serialize(written);
}

Result<Message> decode(std::string_view payload) {
    BERTH_ASSIGN(json::value document, json::parse(payload, "a message"));
    json::Reader head(document, "a message");
    int64_t version = head.integer("v");
    std::string type = head.string("type");
    BERTH_TRY(head.allow_unknown().finish());
    if (version != kVersion)
        return fail(ErrorCode::kMismatch,
                    fmt::format("the peer speaks version {} of the protocol, this program version "
                                "{}: install the same release of both",
                                version, kVersion));
    for (size_t i = 0; i < kTypeNames.size(); ++i) {
        if (kTypeNames[i] != type)
            continue;
        json::Reader reader(document, fmt::format("message '{}'", type));
        reader.allow_unknown();
        return read_type(i, reader, std::make_index_sequence<std::variant_size_v<Message>>());
    }
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a message has type '{:.64}'; this program knows {}", type,
                            fmt::join(kTypeNames, ", ")));
}

Status send(int socket, const Message& message, const std::vector<int>& fds, Deadline deadline) {
    return send_packet(socket, encode(message), fds, deadline);
}

Result<Received> receive(int socket, Deadline deadline) {
    BERTH_ASSIGN(Packet packet, receive_packet(socket, deadline));
    BERTH_ASSIGN(Message message, decode(packet.payload));
    return Received{std::move(message), std::move(packet.fds)};
}

} // namespace berth::protocol
