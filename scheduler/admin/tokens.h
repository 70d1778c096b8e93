// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/node_spec.h"

#include <string>
#include <string_view>
#include <vector>

namespace berth {

// The bearer tokens of the admin interface over TCP, by their hashes. The file has one a line:
//
//     # who      may         by
//     grafana    viewer sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//
// `berth token NAME --role ROLE` prints such a line. A file of one bare token alone is read as an
// admin's, with a warning: whoever reads the file has it.
class Tokens {
  public:
    static constexpr size_t kFileBytesMax = size_t{256} << 10;
    static constexpr size_t kTokensMax = 1'000;
    static constexpr size_t kBareTokenMin = 16; // characters

    struct Token {
        std::string name;
        policies::Role role = policies::Role::kViewer;
        std::string sha256; // 64 lower-case hexadecimal digits
    };

    Tokens() = default;
    // InvalidArgument with file:line for a line that is none of these, or a name given twice.
    static Result<Tokens> parse(std::string_view text, const std::string& file);
    // PermissionDenied for a file that others may read or change, or that belongs to somebody else
    // than root and this process's user.
    static Result<Tokens> read(const std::string& file);

    // Takes the same time whichever token it is, and for one that is none.
    const Token* find(std::string_view token) const;
    size_t size() const { return tokens_.size(); }
    const std::string& warning() const { return warning_; } // empty: none

  private:
    std::vector<Token> tokens_;
    std::string warning_;
};

struct NewToken {
    std::string token; // to be given to the caller, once
    std::string line;  // for the file
};
// InvalidArgument for a name that cannot stand in the file.
Result<NewToken> make_token(const std::string& name, policies::Role role);

} // namespace berth
