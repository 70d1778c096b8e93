// SPDX-License-Identifier: Apache-2.0
// Merging: the word is a doubly linked list of symbols, and every adjacent pair that has a merge
// lies in a heap ordered by rank, then by place. A pair taken from the heap is stale when one of
// its symbols has been merged since; it is then skipped. So a word of n characters takes O(n log
// n), where looking for the best pair anew after each merge would take O(n^2).
#include "engine_shim/reference/text/bpe.h"

#include "engine_shim/reference/text/component.h"
#include "engine_shim/reference/text/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace berth::text {
namespace {

// Far above any real vocabulary; bounds the table that a hostile file can make us allocate.
constexpr int64_t kTokenIdMax = int64_t{1} << 24;
constexpr size_t kNone = std::numeric_limits<size_t>::max();

struct Symbol {
    int32_t id = 0;
    size_t previous = kNone;
    size_t next = kNone;
    bool is_merged = false; // into the symbol before it
};

struct Candidate {
    uint32_t rank = 0;
    int32_t id = 0; // what the pair becomes
    size_t left = 0;
};

// For std::push_heap, whose top is the greatest: the lowest rank, then the leftmost.
bool is_later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32U) | static_cast<uint32_t>(right);
}

bool is_absent(const json::value* value) {
    return value == nullptr || value->is_null() ||
           (value->is_string() && value->get_string().empty());
}

} // namespace

Result<Bpe> Bpe::parse(const json::value& from) {
    // Very old files have no type in their model.
    const json::object* object = from.if_object();
    if (object == nullptr)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("model: expected an object, found {}", json::kind_name(from)));
    if (object->if_contains("type") != nullptr) {
        BERTH_ASSIGN(std::string type, component_type(from, "model"));
        if (type != "BPE")
            return unknown_component("model", type, "BPE");
    }
    Bpe bpe;
    BERTH_TRY(bpe.read_vocabulary(from));
    BERTH_TRY(bpe.read_merges(from));
    BERTH_TRY(bpe.read_options(from));
    return bpe;
}

Status Bpe::read_options(const json::value& from) {
    json::Reader reader(from, "model 'BPE'");
    reader.allow_unknown();
    for (std::string_view affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        if (!is_absent(reader.any(affix)))
            reader.refuse(affix, "is not supported: byte-level tokenizers have none");
    }
    const json::value* dropout = reader.any("dropout");
    if (!is_absent(dropout) && !(dropout->is_number() && dropout->to_number<double>() == 0))
        reader.refuse("dropout", "is not supported: the same text must give the same tokens");
    if (reader.boolean("byte_fallback", false))
        reader.refuse("byte_fallback", "is not supported: byte-level tokenizers need none");
    ignores_merges_ = reader.boolean("ignore_merges", false);
    fuses_unknown_ = reader.boolean("fuse_unk", false);
    const json::value* unknown = reader.any("unk_token");
    if (!is_absent(unknown)) {
        if (unknown->is_string())
            unknown_ = find(to_view(unknown->get_string()));
        if (!unknown_)
            reader.refuse("unk_token", "is not in the vocabulary");
    }
    return reader.finish();
}

Status Bpe::read_vocabulary(const json::value& from) {
    const json::value* vocabulary = from.get_object().if_contains("vocab");
    if (vocabulary == nullptr || !vocabulary->is_object())
        return fail(ErrorCode::kInvalidArgument,
                    "model 'BPE': field 'vocab': expected an object of token: id");
    ids_.reserve(vocabulary->get_object().size());
    for (const auto& [key, id] : vocabulary->get_object()) {
        std::string token(key.data(), key.size());
        const int64_t* number = id.if_int64();
        if (number == nullptr || *number < 0 || *number > kTokenIdMax)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("model 'BPE': vocab: token '{}': expected an id from 0 to {}, "
                                    "found {}",
                                    token, kTokenIdMax, json::serialize(id)));
        auto index = static_cast<size_t>(*number);
        if (index >= tokens_.size())
            tokens_.resize(index + 1);
        tokens_[index] = token;
        ids_.emplace(std::move(token), static_cast<int32_t>(*number));
    }
    return {};
}

Status Bpe::read_merges(const json::value& from) {
    const json::value* merges = from.get_object().if_contains("merges");
    if (merges == nullptr || !merges->is_array())
        return fail(ErrorCode::kInvalidArgument,
                    R"(model 'BPE': field 'merges': expected a list of "a b" or ["a", "b"])");
    merges_.reserve(merges->get_array().size());
    uint32_t rank = 0;
    for (const json::value& merge : merges->get_array()) {
        const json::array* pair = merge.if_array();
        if (pair != nullptr && pair->size() == 2 && (*pair)[0].is_string() &&
            (*pair)[1].is_string()) {
            BERTH_TRY(add_merge(rank, to_view((*pair)[0].get_string()),
                                to_view((*pair)[1].get_string())));
        } else {
            std::string_view text = merge.is_string() ? to_view(merge.get_string()) : "";
            size_t space = text.find(' ');
            if (space == std::string_view::npos || text.rfind(' ') != space)
                return fail(ErrorCode::kInvalidArgument,
                            fmt::format(R"(model 'BPE': merge {}: expected "a b" or ["a", "b"], )"
                                        "found {}",
                                        rank, json::serialize(merge)));
            BERTH_TRY(add_merge(rank, text.substr(0, space), text.substr(space + 1)));
        }
        ++rank;
    }
    return {};
}

Status Bpe::add_merge(uint32_t rank, std::string_view left, std::string_view right) {
    std::string joined = std::string(left) + std::string(right);
    std::optional<int32_t> left_id = find(left);
    std::optional<int32_t> right_id = find(right);
    std::optional<int32_t> id = find(joined);
    if (!left_id || !right_id || !id)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("model 'BPE': merge {} ('{}' and '{}'): '{}' is not in the "
                                "vocabulary",
                                rank, left, right,
                                !left_id ? left : (!right_id ? right : std::string_view(joined))));
    merges_[pair_key(*left_id, *right_id)] = Merge{rank, *id};
    return {};
}

std::optional<int32_t> Bpe::find(std::string_view token) const {
    auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string& Bpe::token(int32_t id) const {
    static const std::string kNothing;
    auto index = static_cast<size_t>(id);
    return id < 0 || index >= tokens_.size() ? kNothing : tokens_[index];
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
    auto found = merges_.find(pair_key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
}

std::vector<int32_t> Bpe::characters_of(std::string_view word) const {
    std::vector<int32_t> characters;
    characters.reserve(word.size());
    bool was_unknown = false;
    while (!word.empty()) {
        size_t bytes = std::min(utf8_length(word[0]), word.size());
        std::optional<int32_t> id = find(word.substr(0, bytes));
        if (id)
            characters.push_back(*id);
        else if (unknown_ && !(was_unknown && fuses_unknown_))
            characters.push_back(*unknown_);
        was_unknown = !id;
        word.remove_prefix(bytes);
    }
    return characters;
}

void Bpe::merge(const std::vector<int32_t>& characters, std::vector<int32_t>& ids) const {
    std::vector<Symbol> symbols(characters.size());
    std::vector<Candidate> heap;
    auto consider = [&](size_t left, size_t right) {
        const Merge* found = find_merge(symbols[left].id, symbols[right].id);
        if (found != nullptr) {
            heap.push_back({found->rank, found->id, left});
            std::push_heap(heap.begin(), heap.end(), is_later);
        }
    };
    for (size_t at = 0; at < symbols.size(); ++at) {
        symbols[at] = {characters[at], at == 0 ? kNone : at - 1,
                       at + 1 == symbols.size() ? kNone : at + 1, false};
        if (at > 0)
            consider(at - 1, at);
    }
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), is_later);
        Candidate best = heap.back();
        heap.pop_back();
        Symbol& left = symbols[best.left];
        if (left.is_merged || left.next == kNone)
            continue;
        Symbol& right = symbols[left.next];
        const Merge* now = find_merge(left.id, right.id);
        if (now == nullptr || now->id != best.id)
            continue;
        left.id = best.id;
        left.next = right.next;
        right.is_merged = true;
        if (left.next != kNone) {
            symbols[left.next].previous = best.left;
            consider(best.left, left.next);
        }
        if (left.previous != kNone)
            consider(left.previous, best.left);
    }
    for (size_t at = 0; at < symbols.size(); at = symbols[at].next) {
        ids.push_back(symbols[at].id);
        if (symbols[at].next == kNone)
            break;
    }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
    if (ignores_merges_) {
        if (std::optional<int32_t> whole = find(word)) {
            ids.push_back(*whole);
            return;
        }
    }
    std::vector<int32_t> characters = characters_of(word);
    if (characters.size() < 2)
        ids.insert(ids.end(), characters.begin(), characters.end());
    else
        merge(characters, ids);
}

} // namespace berth::text
