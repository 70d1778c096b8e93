// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/cuda_device.h"

#include "cache/memory/cuda_grant.h"
#include "cache/memory/cuda_kernels.h"
#include "cache/memory/cuda_vmm.h"
#include "cache/memory/host_device.h"
#include "cache/memory/host_pages.h"
#include "cache/memory/numa.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>

namespace berth {

namespace {

constexpr uint64_t kCudaGrantStep = uint64_t{256} << 20;

CUdeviceptr device_address(const std::byte* at) {
    return reinterpret_cast<CUdeviceptr>(at);
}

class CudaWritableSegment final : public WritableSegment {
  public:
    CudaWritableSegment(VmmHandle handle, std::unique_ptr<VmmRange> range)
        : handle_(std::move(handle)), range_(std::move(range)),
          bytes_(range_->reservation.bytes()) {}

    std::byte* data() const override { return range_ ? range_->data() : nullptr; }
    uint64_t bytes() const override { return bytes_; }

    Result<Segment> seal() override {
        if (!range_)
            return fail(ErrorCode::kFailedPrecondition, "the segment has been sealed already");
        Segment segment;
        BERTH_ASSIGN(segment.fd, handle_.export_fd());
        segment.bytes = bytes_;
        range_.reset();
        handle_ = VmmHandle();
        return segment;
    }

  private:
    VmmHandle handle_;
    std::unique_ptr<VmmRange> range_;
    uint64_t bytes_;
};

// Touched pages, near the device, registered with the driver: several times faster than letting
// the driver allocate pinned memory.
struct PinnedRange final : Mapping::Owner {
    PinnedRange(SharedContext shared, HostPages memory)
        : context(std::move(shared)), pages(std::move(memory)) {}
    ~PinnedRange() override {
        if (registered && context->make_current())
            context->driver().mem_host_unregister(pages.data());
    }
    SharedContext context;
    HostPages pages;
    bool registered = false;
};

class CudaDevice final : public Device {
  public:
    CudaDevice(std::string id, DeviceCapabilities capabilities, SharedContext context)
        : id_(std::move(id)), capabilities_(std::move(capabilities)), context_(std::move(context)) {
    }
    ~CudaDevice() override {
        if (!context_->make_current())
            return;
        for (CUstream stream : streams_)
            if (stream != nullptr)
                context_->driver().stream_destroy(stream);
    }

    const std::string& id() const override { return id_; }
    const DeviceCapabilities& capabilities() const override { return capabilities_; }
    Result<std::unique_ptr<WritableSegment>> create_segment(uint64_t bytes,
                                                            const std::string& name) override;
    Result<Mapping> map_read_only(const Segment& segment) override;
    Result<std::unique_ptr<GrantArena>> create_grant(uint64_t bytes_max) override {
        return create_cuda_grant(context_, bytes_max, capabilities_.grant_step_bytes);
    }
    Result<HostBuffer> create_host_buffer(uint64_t bytes) override;
    Result<Mapping> create_device_buffer(uint64_t bytes) override {
        return create_cuda_buffer(context_, bytes);
    }
    Status copy_to_device(std::byte* device, const std::byte* host, uint64_t bytes) override;
    Status copy_to_host(std::byte* host, const std::byte* device, uint64_t bytes) override;
    Status start_copy_to_device(int lane, std::byte* device, const std::byte* host,
                                uint64_t bytes) override;
    Status start_copy_2d_to_device(int lane, std::byte* device, uint64_t device_pitch,
                                   const std::byte* host, uint64_t host_pitch, uint64_t width,
                                   uint64_t height) override;
    Status wait_lane(int lane) override;
    Result<std::unique_ptr<KernelModule>> load_kernels(std::span<const std::byte> image) override {
        return load_cuda_kernels(context_, image);
    }
    Status start_kernel(int lane, KernelModule::Function function, uint32_t groups,
                        uint32_t threads, std::span<void*> arguments) override;
    Status synchronize() override { return context_->synchronize(); }
    Result<DeviceMemory> memory() override;

  private:
    // Streams of the lanes, and one more for copies that wait.
    static constexpr int kOwnStream = kLanes;
    Result<CUstream> stream(int lane);
    Status wait_stream(int lane);

    std::string id_;
    DeviceCapabilities capabilities_;
    SharedContext context_;
    std::array<CUstream, kLanes + 1> streams_{};
};

Result<std::unique_ptr<WritableSegment>> CudaDevice::create_segment(uint64_t bytes,
                                                                    const std::string& name) {
    if (bytes == 0)
        return fail(ErrorCode::kInvalidArgument, "a segment of 0 bytes was asked for");
    uint64_t rounded = round_up(bytes, capabilities_.granularity_bytes);
    auto handle = VmmHandle::create(context_, rounded, true);
    if (!handle)
        return fail_in(fmt::format("segment {} on {}", name, id_), std::move(handle).error());
    BERTH_ASSIGN(auto range,
                 VmmRange::map(context_, *handle, rounded, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    return std::make_unique<CudaWritableSegment>(std::move(*handle), std::move(range));
}

// Each import takes another reference in the driver: a process maps a segment once and keeps it.
Result<Mapping> CudaDevice::map_read_only(const Segment& segment) {
    if (segment.bytes == 0 || segment.bytes % capabilities_.granularity_bytes != 0)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("a segment of {} bytes: expected a multiple of the device's "
                                "granularity, {}",
                                segment.bytes, capabilities_.granularity_bytes));
    BERTH_ASSIGN(VmmHandle handle, VmmHandle::import(context_, segment.fd));
    BERTH_ASSIGN(auto range,
                 VmmRange::map(context_, handle, segment.bytes, CU_MEM_ACCESS_FLAGS_PROT_READ));
    std::byte* data = range->data();
    return Mapping(data, segment.bytes, std::move(range));
}

Result<HostBuffer> CudaDevice::create_host_buffer(uint64_t bytes) {
    BERTH_TRY(context_->make_current());
    BERTH_ASSIGN(HostPages pages, HostPages::create(bytes, capabilities_.numa_node));
    std::byte* data = pages.data();
    auto range = std::make_unique<PinnedRange>(context_, std::move(pages));
    CUresult code = context_->driver().mem_host_register(data, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(code, fmt::format("cuMemHostRegister(bytes {})", bytes));
    range->registered = true;
    return HostBuffer{Mapping(data, bytes, std::move(range))};
}

Result<CUstream> CudaDevice::stream(int lane) {
    BERTH_TRY(context_->make_current());
    CUstream& mine = streams_[static_cast<size_t>(lane)];
    if (mine == nullptr) {
        CUresult code = context_->driver().stream_create(&mine, CU_STREAM_NON_BLOCKING);
        if (code != CUDA_SUCCESS)
            return context_->driver().failed(code, fmt::format("cuStreamCreate(lane {})", lane));
    }
    return mine;
}

Status CudaDevice::wait_stream(int lane) {
    BERTH_ASSIGN(CUstream mine, stream(lane));
    CUresult code = context_->driver().stream_synchronize(mine);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(code, fmt::format("cuStreamSynchronize(lane {})", lane));
    return {};
}

Status CudaDevice::copy_to_device(std::byte* device, const std::byte* host, uint64_t bytes) {
    BERTH_ASSIGN(CUstream mine, stream(kOwnStream));
    CUresult code = context_->driver().memcpy_to_device(device_address(device), host, bytes, mine);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(code, fmt::format("cuMemcpyHtoDAsync(to {:#x}, bytes {})",
                                                           device_address(device), bytes));
    return wait_stream(kOwnStream);
}

Status CudaDevice::copy_to_host(std::byte* host, const std::byte* device, uint64_t bytes) {
    BERTH_ASSIGN(CUstream mine, stream(kOwnStream));
    CUresult code = context_->driver().memcpy_to_host(host, device_address(device), bytes, mine);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(
            code,
            fmt::format("cuMemcpyDtoHAsync(from {:#x}, bytes {})", device_address(device), bytes));
    return wait_stream(kOwnStream);
}

Status check_lane(int lane) {
    if (lane < 0 || lane >= Device::kLanes)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("lane {}: lanes are 0 to {}", lane, Device::kLanes - 1));
    return {};
}

Status CudaDevice::start_copy_to_device(int lane, std::byte* device, const std::byte* host,
                                        uint64_t bytes) {
    BERTH_TRY(check_lane(lane));
    BERTH_ASSIGN(CUstream mine, stream(lane));
    CUresult code = context_->driver().memcpy_to_device(device_address(device), host, bytes, mine);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(
            code, fmt::format("cuMemcpyHtoDAsync(lane {}, to {:#x}, bytes {})", lane,
                              device_address(device), bytes));
    return {};
}

Status CudaDevice::start_copy_2d_to_device(int lane, std::byte* device, uint64_t device_pitch,
                                           const std::byte* host, uint64_t host_pitch,
                                           uint64_t width, uint64_t height) {
    BERTH_TRY(check_lane(lane));
    BERTH_TRY(check_copy_2d(device_pitch, host_pitch, width, height));
    if (width == 0 || height == 0)
        return {};
    if (height == 1 || (device_pitch == width && host_pitch == width))
        return start_copy_to_device(lane, device, host, width * height);
    BERTH_ASSIGN(CUstream mine, stream(lane));
    return start_cuda_copy_2d(context_->driver(), mine,
                              {device, device_pitch, host, host_pitch, width, height});
}

Status CudaDevice::start_kernel(int lane, KernelModule::Function function, uint32_t groups,
                                uint32_t threads, std::span<void*> arguments) {
    BERTH_TRY(check_lane(lane));
    BERTH_ASSIGN(CUstream mine, stream(lane));
    CUresult code =
        context_->driver().launch_kernel(static_cast<CUfunction>(function.handle), groups, 1, 1,
                                         threads, 1, 1, 0, mine, arguments.data(), nullptr);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(
            code,
            fmt::format("cuLaunchKernel(lane {}, groups {}, threads {})", lane, groups, threads));
    return {};
}

Status CudaDevice::wait_lane(int lane) {
    BERTH_TRY(check_lane(lane));
    return wait_stream(lane);
}

Result<DeviceMemory> CudaDevice::memory() {
    BERTH_TRY(context_->make_current());
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    CUresult code = context_->driver().mem_get_info(&free_bytes, &total_bytes);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(code, "cuMemGetInfo");
    return DeviceMemory{total_bytes, total_bytes - free_bytes};
}

struct Found {
    CUdevice device = 0;
    std::string uuid;
    std::string name;
};

std::string uuid_text(const CUuuid& uuid, std::string_view prefix) {
    std::string text(prefix);
    for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            text += '-';
        text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
    }
    return text;
}

Result<Found> describe(const CudaDriver& driver, int index) {
    Found found;
    CUresult code = driver.device_get(&found.device, index);
    if (code != CUDA_SUCCESS)
        return driver.failed(code, fmt::format("cuDeviceGet({})", index));
    std::array<char, 128> name{};
    code = driver.device_get_name(name.data(), static_cast<int>(name.size()), found.device);
    if (code != CUDA_SUCCESS)
        return driver.failed(code, fmt::format("cuDeviceGetName({})", index));
    found.name = name.data();
    CUuuid uuid{};
    code = driver.device_get_uuid(&uuid, found.device);
    if (code != CUDA_SUCCESS)
        return driver.failed(code, fmt::format("cuDeviceGetUuid({})", index));
    // A MIG instance is known by its profile in the name, "... MIG 1g.10gb".
    bool is_mig = found.name.find(" MIG ") != std::string::npos;
    found.uuid = uuid_text(uuid, is_mig ? "MIG-" : "GPU-");
    return found;
}

Result<Found> find_device(const CudaDriver& driver, const std::string& id) {
    int count = 0;
    CUresult code = driver.device_get_count(&count);
    if (code != CUDA_SUCCESS)
        return driver.failed(code, "cuDeviceGetCount");
    std::vector<std::string> seen;
    for (int i = 0; i < count; ++i) {
        BERTH_ASSIGN(Found found, describe(driver, i));
        // The digits decide: drivers differ in what prefix an instance goes by.
        if (id == "cuda" || found.uuid.substr(4) == id.substr(4))
            return found;
        seen.push_back(std::move(found.uuid));
    }
    if (seen.empty())
        return fail(ErrorCode::kUnsupported,
                    "the NVIDIA driver shows this process no GPU; see CUDA_VISIBLE_DEVICES",
                    "NoCudaDevice");
    return fail(ErrorCode::kNotFound,
                fmt::format("device {} is not visible to this process; it sees {} "
                            "(CUDA_VISIBLE_DEVICES and nvidia-smi -L tell more)",
                            id, fmt::join(seen, ", ")));
}

Result<int> attribute(const CudaDriver& driver, CUdevice device, CUdevice_attribute which) {
    int number = 0;
    CUresult code = driver.device_get_attribute(&number, which, device);
    if (code != CUDA_SUCCESS)
        return driver.failed(code, fmt::format("cuDeviceGetAttribute({}, device {})",
                                               static_cast<int>(which), device));
    return number;
}

Result<int> numa_node_of(const CudaDriver& driver, CUdevice device) {
    BERTH_ASSIGN(int domain, attribute(driver, device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID));
    BERTH_ASSIGN(int bus, attribute(driver, device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID));
    BERTH_ASSIGN(int slot, attribute(driver, device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
    return numa_node_of_pci(fmt::format("{:04x}:{:02x}:{:02x}.0", domain, bus, slot));
}

Result<DeviceCapabilities> capabilities_of(const CudaDriver& driver, const Found& found) {
    BERTH_ASSIGN(int vmm, attribute(driver, found.device,
                                    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    BERTH_ASSIGN(int descriptors,
                 attribute(driver, found.device,
                           CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
    if (vmm == 0 || descriptors == 0)
        return fail(ErrorCode::kUnsupported,
                    fmt::format("{} ({}) cannot share memory by descriptor, which Berth needs",
                                found.uuid, found.name),
                    "NoVmm");
    BERTH_ASSIGN(int major,
                 attribute(driver, found.device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
    BERTH_ASSIGN(int minor,
                 attribute(driver, found.device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    int version = 0;
    CUresult code = driver.driver_get_version(&version);
    if (code != CUDA_SUCCESS)
        return driver.failed(code, "cuDriverGetVersion");
    CUmemAllocationProp properties = vmm_properties(found.device, true);
    size_t granularity = 0;
    code = driver.mem_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (code != CUDA_SUCCESS)
        return driver.failed(code, "cuMemGetAllocationGranularity");
    DeviceCapabilities facts;
    facts.kind = DeviceKind::kCuda;
    facts.granularity_bytes = granularity;
    BERTH_ASSIGN(facts.grant_step_bytes, grant_step_from_environment(granularity, kCudaGrantStep));
    facts.cpu_addressable = false;
    facts.sealed_by_kernel = false;
    facts.runs_kernels = true;
    facts.compute_capability = fmt::format("{}.{}", major, minor);
    facts.driver_version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    facts.name = found.name;
    BERTH_ASSIGN(facts.numa_node, numa_node_of(driver, found.device));
    return facts;
}

} // namespace

Result<std::unique_ptr<Device>> open_cuda_device(const std::string& id) {
    BERTH_ASSIGN(const CudaDriver* driver, cuda_driver());
    BERTH_ASSIGN(Found found, find_device(*driver, id));
    BERTH_ASSIGN(DeviceCapabilities capabilities, capabilities_of(*driver, found));
    BERTH_ASSIGN(SharedContext context, CudaContext::retain(driver, found.device));
    return std::make_unique<CudaDevice>(found.uuid, std::move(capabilities), std::move(context));
}

} // namespace berth
