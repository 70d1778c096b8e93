// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/sealed_set.h"
#include "cache/load/set_filler.h"
#include "cache/weights/fingerprint.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// A weight set as one flat file, written once: sliced, cast and quantised as it lay on the device,
// so that nothing is left to do but to read it. image_format.h says what lies where.
namespace berth {

// An image whose header is whole, whose size is what the header says, and whose manifest is what
// was written. No byte of a segment has been read.
struct Image {
    std::string path;
    CheckpointFile file; // as it was then
    UniqueFd manifest;   // a sealed copy, the same bytes
    std::vector<FiledSegment> segments;
    SetEnvironment made_for;
    std::string fingerprint;      // SHA-256
    std::string fingerprint_json; // its document
    uint64_t tensors = 0;         // of the manifest
    std::vector<uint64_t> segment_bytes() const;
};

// Every error names the file, what was found, what was expected and what to do: TruncatedImage,
// TrailingBytes, ImageVersion, CorruptImage. Blocks on the disk.
Result<Image> open_image(const std::string& path);

// Whether the file begins with an image's magic number. Blocks on the disk.
bool begins_as_image(const std::string& path);

// What an image must be to be of use.
struct ImageWanted {
    std::string fingerprint; // empty: any
    std::string layout = std::string(kLayoutTag);
};
// Mismatch: FingerprintMismatch, LayoutMismatch.
Status check_image(const Image& image, const ImageWanted& wanted);

// Brings the set onto a device of the kind that it was made for (EnvironmentMismatch) and compares
// every tensor's checksum there. The manifest is the image's. Blocks; the device is used by the
// calling thread alone.
Result<LoadedSet> run_image_load(const Image& image, Device& device, int threads,
                                 ReaderOptions reader, const StreamProgress& progress);
// All of it.
Result<LoadedSet> run_image_load(const std::string& path, const ImageWanted& wanted, Device& device,
                                 int threads, ReaderOptions reader, const StreamProgress& progress);

// Writes the image of a sealed set that lies on `device`, after comparing its checksums. The file
// appears under its name once all of it is on disk; before, and after a failure or a death, there
// is what was there before. Blocks on the disk and the device.
Status write_image(const std::string& path, const SetView& set, Device& device, int threads,
                   const StreamProgress& progress);

} // namespace berth
