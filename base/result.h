// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tl/expected.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace berth {

// What kind of failure an Error is. Closed: callers may switch over it; admin replies map it to an
// HTTP status (see http_status).
enum class ErrorCode {
    kInvalidArgument,    // the caller's input is wrong; retrying the same will fail again
    kNotFound,           // the named thing does not exist
    kAlreadyExists,      // the named thing exists already
    kFailedPrecondition, // the state does not allow it (now)
    kPermissionDenied,   // peer credentials, roles, tenants
    kResourceExhausted,  // no room: device memory, descriptors, budgets
    kMismatch,           // fingerprints, checksums, versions differ
    kUnavailable,        // a peer is gone or not there yet; retry with back-off
    kDeadlineExceeded,   // it took longer than allowed
    kCorrupt,            // bytes on disk or on the wire are not what they must be
    kIo,                 // the operating system or a driver refused; `source` has errno or CUresult
    kUnsupported,        // not possible here; the message says why and what would work
    kInternal,           // our own fault
};

std::string_view to_string(ErrorCode code);
// The code with that name (as to_string writes it); kInternal for an unknown one.
ErrorCode error_code_from(std::string_view name);
int http_status(ErrorCode code);

// A failure as a value. `message` says what was found, what was expected and what to do;
// `reason` is a CamelCase word for programs, empty where the code says enough;
// `source` is errno or a CUresult, 0 where neither applies.
struct Error {
    ErrorCode code = ErrorCode::kInternal;
    std::string message;
    std::string reason;
    int source = 0;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message, std::string reason = {}) {
    return tl::unexpected<Error>(Error{code, std::move(message), std::move(reason), 0});
}

inline tl::unexpected<Error> fail(Error error) {
    return tl::unexpected<Error>(std::move(error));
}

// "WHAT: No such file or directory", with errno (or the one given) as the source.
tl::unexpected<Error> fail_errno(std::string_view what);
tl::unexpected<Error> fail_errno(std::string_view what, int error_number);

// The same error with "CONTEXT: " before its message.
tl::unexpected<Error> fail_in(std::string_view context, Error error);

} // namespace berth

// Evaluates EXPRESSION (a Result); on failure returns its error from the enclosing function.
#define BERTH_CONCAT_INNER(a, b) a##b
#define BERTH_CONCAT(a, b) BERTH_CONCAT_INNER(a, b)
#define BERTH_TRY(expression)                                                                      \
    do {                                                                                           \
        auto berth_try_result = (expression);                                                      \
        if (!berth_try_result)                                                                     \
            return ::tl::unexpected<::berth::Error>(std::move(berth_try_result).error());          \
    } while (false)
// BERTH_ASSIGN(auto x, expression): the same, and binds the value.
#define BERTH_ASSIGN(declaration, expression)                                                      \
    BERTH_ASSIGN_INNER(BERTH_CONCAT(berth_result_, __COUNTER__), declaration, expression)
#define BERTH_ASSIGN_INNER(temporary, declaration, expression)                                     \
    auto temporary = (expression);                                                                 \
    if (!temporary)                                                                                \
        return ::tl::unexpected<::berth::Error>(std::move(temporary).error());                     \
    declaration = std::move(*temporary)
