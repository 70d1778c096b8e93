// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace berth {

namespace {

struct CodeRow {
    ErrorCode code;
    std::string_view name;
    int http;
};

constexpr std::array kCodes = {
    CodeRow{ErrorCode::kInvalidArgument, "InvalidArgument", 400},
    CodeRow{ErrorCode::kNotFound, "NotFound", 404},
    CodeRow{ErrorCode::kAlreadyExists, "AlreadyExists", 409},
    CodeRow{ErrorCode::kFailedPrecondition, "FailedPrecondition", 409},
    CodeRow{ErrorCode::kPermissionDenied, "PermissionDenied", 403},
    CodeRow{ErrorCode::kResourceExhausted, "ResourceExhausted", 507},
    CodeRow{ErrorCode::kMismatch, "Mismatch", 412},
    CodeRow{ErrorCode::kUnavailable, "Unavailable", 503},
    CodeRow{ErrorCode::kDeadlineExceeded, "DeadlineExceeded", 504},
    CodeRow{ErrorCode::kCorrupt, "Corrupt", 422},
    CodeRow{ErrorCode::kIo, "Io", 500},
    CodeRow{ErrorCode::kUnsupported, "Unsupported", 501},
    CodeRow{ErrorCode::kInternal, "Internal", 500},
};

const CodeRow& row(ErrorCode code) {
    for (const CodeRow& candidate : kCodes)
        if (candidate.code == code)
            return candidate;
    return kCodes.back();
}

} // namespace

std::string_view to_string(ErrorCode code) {
    return row(code).name;
}

int http_status(ErrorCode code) {
    return row(code).http;
}

ErrorCode error_code_from(std::string_view name) {
    for (const CodeRow& candidate : kCodes)
        if (candidate.name == name)
            return candidate.code;
    return ErrorCode::kInternal;
}

tl::unexpected<Error> fail_errno(std::string_view what) {
    return fail_errno(what, errno);
}

tl::unexpected<Error> fail_errno(std::string_view what, int error_number) {
    ErrorCode code = ErrorCode::kIo;
    switch (error_number) {
    case ENOENT:
        code = ErrorCode::kNotFound;
        break;
    case EACCES:
    case EPERM:
        code = ErrorCode::kPermissionDenied;
        break;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
        code = ErrorCode::kResourceExhausted;
        break;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
        code = ErrorCode::kUnavailable;
        break;
    default:
        break;
    }
    std::string message = std::string(what) + ": " + std::generic_category().message(error_number);
    std::string reason;
    if (error_number == EMFILE || error_number == ENFILE) {
        message += error_number == EMFILE ? " (RLIMIT_NOFILE): raise the limit, or close something"
                                          : " (fs.file-max)";
        reason = "TooManyDescriptors";
    }
    return fail(Error{code, std::move(message), std::move(reason), error_number});
}

tl::unexpected<Error> fail_in(std::string_view context, Error error) {
    error.message = std::string(context) + ": " + error.message;
    return fail(std::move(error));
}

} // namespace berth
