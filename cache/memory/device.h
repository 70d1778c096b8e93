// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

// A device and the memory on it, behind one interface with two complete backends:
//
//   host  a budget of host memory; segments are memfds sealed against writing, growing, shrinking
//   cuda  one GPU; segments are CUDA virtual-memory-management (VMM) allocations
//
// Thread rule: a Device may be used from one thread at a time, unless a call says otherwise; what
// it hands out may outlive it. Calls may block on the driver: never call them on berthd's decision
// thread (and berthd never opens a cuda device at all).
namespace berth {

enum class DeviceKind { kHost, kCuda };
std::string_view to_string(DeviceKind kind); // "host", "cuda"
Result<DeviceKind> device_kind_from(std::string_view name);

// What differs between backends; facts, asked once.
struct DeviceCapabilities {
    DeviceKind kind = DeviceKind::kHost;
    uint64_t granularity_bytes = 4096; // sizes of segments and of grant steps are multiples of it
    uint64_t grant_step_bytes = 4096;  // the size of one grant handle, a multiple of granularity
    bool cpu_addressable = true;       // mappings may be read by the CPU
    bool sealed_by_kernel = true;      // a sealed segment cannot be written even by a hostile peer
    bool runs_kernels = false;         // load_kernels() may be asked for code to run on the device
    std::string compute_capability;    // "9.0"; empty on the host
    std::string driver_version;        // "13.0" (CUDA driver API); empty on the host
    std::string name;                  // "NVIDIA H200"; "host memory"
    // Of the machine's memory, the nearest (numa.h); -1: all is alike, or unknown.
    int numa_node = -1;
};

// A mapped address range. Move-only; empty is legal; destruction unmaps and frees what the backend
// holds for it. On cuda the address is a device address and the destructor fences the device first.
class Mapping {
  public:
    // Implemented by backends: its destructor unmaps.
    struct Owner {
        Owner() = default;
        Owner(const Owner&) = delete;
        Owner& operator=(const Owner&) = delete;
        virtual ~Owner() = default;
    };
    Mapping() = default;
    Mapping(std::byte* data, uint64_t bytes, std::unique_ptr<Owner> owner)
        : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
    Mapping(Mapping&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)),
          owner_(std::move(other.owner_)) {}
    Mapping& operator=(Mapping&& other) noexcept {
        owner_ = std::move(other.owner_);
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
        return *this;
    }

    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }
    explicit operator bool() const { return data_ != nullptr; }
    void reset() { *this = Mapping(); }

  private:
    std::byte* data_ = nullptr;
    uint64_t bytes_ = 0;
    std::unique_ptr<Owner> owner_;
};

// One sealed allocation: whoever holds the descriptor keeps the memory alive.
struct Segment {
    UniqueFd fd;
    uint64_t bytes = 0;
};

// A segment while it is filled: mapped read-write in this process alone. seal() unmaps it, seals it
// (host: F_SEAL_WRITE|GROW|SHRINK|SEAL, and the descriptor handed out is a read-only reopening) and
// returns the descriptor to pass on. Dropping it unsealed frees the memory.
class WritableSegment {
  public:
    WritableSegment() = default;
    WritableSegment(const WritableSegment&) = delete;
    WritableSegment& operator=(const WritableSegment&) = delete;
    virtual ~WritableSegment() = default;
    virtual std::byte* data() const = 0;
    virtual uint64_t bytes() const = 0;
    virtual Result<Segment> seal() = 0; // once; afterwards data() is nullptr
};

// Memory that an engine uses within its grant: one stable address range of `bytes_max`, backed from
// its start up to bytes() by whole steps. Growing zero-fills nothing and promises no contents;
// shrinking fences the device, then unmaps and frees from the top. Contents below stay.
class GrantArena {
  public:
    GrantArena() = default;
    GrantArena(const GrantArena&) = delete;
    GrantArena& operator=(const GrantArena&) = delete;
    virtual ~GrantArena() = default;
    virtual std::byte* data() const = 0;
    virtual uint64_t bytes() const = 0;
    virtual uint64_t bytes_max() const = 0;
    virtual uint64_t step_bytes() const = 0;
    // Backs exactly ceil(bytes / step) steps. A failure to grow leaves the size as it was.
    virtual Status resize(uint64_t bytes) = 0;
};

// Host memory that the device copies from and to at full speed (cuda: pinned).
struct HostBuffer {
    Mapping mapping;
};

// Code loaded onto a device. Its functions may be started as long as it lives; it may outlive its
// Device. Destruction waits for what still runs.
class KernelModule {
  public:
    struct Function {
        void* handle = nullptr; // the backend's own
    };
    KernelModule() = default;
    KernelModule(const KernelModule&) = delete;
    KernelModule& operator=(const KernelModule&) = delete;
    virtual ~KernelModule() = default;
    virtual Result<Function> function(const char* name) const = 0;
};

struct DeviceMemory {
    uint64_t total_bytes = 0;
    uint64_t used_bytes = 0; // by everybody, as the driver says (host: this node's memfds on it)
};

class Device {
  public:
    Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    virtual ~Device() = default;

    // "host-0", or a GPU's or MIG instance's UUID: "GPU-...", "MIG-...".
    virtual const std::string& id() const = 0;
    virtual const DeviceCapabilities& capabilities() const = 0;

    // ResourceExhausted when the device has no room. `name` shows in /proc/PID/maps on the host
    // (memfd names: "berth-weights", ...).
    virtual Result<std::unique_ptr<WritableSegment>> create_segment(uint64_t bytes,
                                                                    const std::string& name) = 0;
    // Maps a sealed segment for reading only; a write through it ends the writer (SIGSEGV, or an
    // illegal address on cuda). The segment's descriptor may be closed afterwards.
    virtual Result<Mapping> map_read_only(const Segment& segment) = 0;
    virtual Result<std::unique_ptr<GrantArena>> create_grant(uint64_t bytes_max) = 0;
    virtual Result<HostBuffer> create_host_buffer(uint64_t bytes) = 0;
    // Scratch memory on the device for this process alone, at a multiple of 256 bytes; contents are
    // arbitrary. What lanes still do with it must be waited for before it is dropped.
    virtual Result<Mapping> create_device_buffer(uint64_t bytes);

    // Copies and waits. `device` addresses lie in a mapping of this device, `host` in host memory
    // (at full speed in a HostBuffer).
    virtual Status copy_to_device(std::byte* device, const std::byte* host, uint64_t bytes) = 0;
    virtual Status copy_to_host(std::byte* host, const std::byte* device, uint64_t bytes) = 0;
    // Starts a copy to the device on lane 0..kLanes-1; the host bytes must stay until
    // wait_lane(lane) returns. Lanes run beside each other, copies of one lane in order.
    static constexpr int kLanes = 4;
    virtual Status start_copy_to_device(int lane, std::byte* device, const std::byte* host,
                                        uint64_t bytes) = 0;
    // The same for `height` rows of `width` bytes each, which lie `pitch` bytes apart on each side.
    virtual Status start_copy_2d_to_device(int lane, std::byte* device, uint64_t device_pitch,
                                           const std::byte* host, uint64_t host_pitch,
                                           uint64_t width, uint64_t height);
    virtual Status wait_lane(int lane) = 0;
    // Kernels, where capabilities().runs_kernels says so (Unsupported elsewhere, and where the
    // image holds no code for this device). start_kernel starts `groups` groups of `threads`
    // threads on a lane, in order with its copies; `arguments` point at the values, which are taken
    // at once.
    virtual Result<std::unique_ptr<KernelModule>> load_kernels(std::span<const std::byte> image);
    virtual Status start_kernel(int lane, KernelModule::Function function, uint32_t groups,
                                uint32_t threads, std::span<void*> arguments);
    // Waits until all work that this process gave the device is done.
    virtual Status synchronize() = 0;
    virtual Result<DeviceMemory> memory() = 0;

  protected:
    static Status check_copy_2d(uint64_t device_pitch, uint64_t host_pitch, uint64_t width,
                                uint64_t height);
};

// `id` is "host-N" or a GPU's UUID (or "cuda" for the first visible GPU). For cuda the process gets
// a primary context on first use. Unsupported when this build or machine has no such device, with
// the reason.
Result<std::unique_ptr<Device>> open_device(const std::string& id);

} // namespace berth
