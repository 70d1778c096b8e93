// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <sys/random.h>
#include <vector>

namespace berth {

namespace {

std::string to_hex(const unsigned char* bytes, size_t count) {
    std::string text;
    text.reserve(count * 2);
    for (size_t i = 0; i < count; ++i)
        text += fmt::format("{:02x}", bytes[i]);
    return text;
}

} // namespace

std::string sha256_hex(std::string_view bytes) {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
    return to_hex(digest.data(), size);
}

std::string random_hex(size_t bytes) {
    std::vector<unsigned char> noise(bytes);
    size_t filled = 0;
    while (filled < bytes) {
        ssize_t got = ::getrandom(noise.data() + filled, bytes - filled, 0);
        if (got > 0)
            filled += static_cast<size_t>(got);
    }
    return to_hex(noise.data(), noise.size());
}

} // namespace berth
