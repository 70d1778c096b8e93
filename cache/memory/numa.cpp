// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/numa.h"

#include "base/number.h"
#include "base/unique_fd.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <optional>
#include <set>

namespace berth {

namespace {

// More than the kernel can be built for.
constexpr int kCpusMax = 1 << 16;
constexpr int kNodesMax = 1024;
constexpr size_t kSysfsBytesMax = 1 << 16;

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
        text.remove_suffix(1);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0)
        text.remove_prefix(1);
    return text;
}

tl::unexpected<Error> bad_list(std::string_view text) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("'{}' is no list of numbers as in 0-3,8 (below {})", text, kCpusMax));
}

Result<std::vector<int>> read_list(const std::string& path) {
    BERTH_ASSIGN(std::string text, read_file(path, kSysfsBytesMax));
    auto list = parse_cpu_list(text);
    if (!list)
        return fail_in(path, std::move(list).error());
    return list;
}

// A set of processors of any size.
class CpuSet {
  public:
    explicit CpuSet(int cpus) : cpus_(cpus), words_(CPU_ALLOC(static_cast<size_t>(cpus))) {
        clear();
    }
    CpuSet(const CpuSet&) = delete;
    CpuSet& operator=(const CpuSet&) = delete;
    ~CpuSet() { CPU_FREE(words_); }
    size_t bytes() const { return CPU_ALLOC_SIZE(static_cast<size_t>(cpus_)); }
    cpu_set_t* get() { return words_; }
    void clear() { CPU_ZERO_S(bytes(), words_); }
    void add(int cpu) { CPU_SET_S(static_cast<size_t>(cpu), bytes(), words_); }
    bool has(int cpu) const { return CPU_ISSET_S(static_cast<size_t>(cpu), bytes(), words_) != 0; }

  private:
    int cpus_;
    cpu_set_t* words_;
};

} // namespace

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
    std::set<int> found;
    std::string_view rest = trimmed(text);
    while (!rest.empty()) {
        size_t comma = rest.find(',');
        std::string_view part = rest.substr(0, comma);
        size_t dash = part.find('-');
        auto first = number_in<int>(part.substr(0, dash));
        auto last = dash == std::string_view::npos ? first : number_in<int>(part.substr(dash + 1));
        if (!first || !last || *first < 0 || *last < *first || *last >= kCpusMax)
            return bad_list(text);
        for (int cpu = *first; cpu <= *last; ++cpu)
            found.insert(cpu);
        if (comma == std::string_view::npos)
            break;
        rest = rest.substr(comma + 1);
        if (rest.empty())
            return bad_list(text);
    }
    return std::vector<int>(found.begin(), found.end());
}

std::vector<int> numa_nodes(const std::string& sysfs) {
    return read_list(sysfs + "/devices/system/node/online").value_or(std::vector<int>{});
}

int numa_node_of_pci(const std::string& bus_id, const std::string& sysfs) {
    auto text = read_file(sysfs + "/bus/pci/devices/" + bus_id + "/numa_node", kSysfsBytesMax);
    if (!text)
        return kNoNumaNode;
    int node = number_in<int>(trimmed(*text)).value_or(kNoNumaNode);
    std::vector<int> nodes = numa_nodes(sysfs);
    bool known = std::find(nodes.begin(), nodes.end(), node) != nodes.end();
    return known && nodes.size() > 1 ? node : kNoNumaNode;
}

Result<std::vector<int>> numa_node_cpus(int node, const std::string& sysfs) {
    std::string path = fmt::format("{}/devices/system/node/node{}/cpulist", sysfs, node);
    auto list = read_list(path);
    if (!list && list.error().source == ENOENT)
        return fail(ErrorCode::kNotFound,
                    fmt::format("this machine has no NUMA node {} (no {})", node, path));
    return list;
}

Status prefer_node(int node, const std::string& sysfs) {
    if (node == kNoNumaNode)
        return {};
    BERTH_ASSIGN(std::vector<int> cpus, numa_node_cpus(node, sysfs));
    CpuSet allowed(kCpusMax);
    if (::sched_getaffinity(0, allowed.bytes(), allowed.get()) != 0)
        return fail_errno("sched_getaffinity");
    CpuSet wanted(kCpusMax);
    int count = 0;
    for (int cpu : cpus) {
        if (!allowed.has(cpu))
            continue;
        wanted.add(cpu);
        ++count;
    }
    if (count == 0)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("this process may use none of NUMA node {}'s {} processors; its "
                                "cpuset or affinity says so",
                                node, cpus.size()));
    if (::sched_setaffinity(0, wanted.bytes(), wanted.get()) != 0)
        return fail_errno(fmt::format("sched_setaffinity to NUMA node {}", node));
    return {};
}

Status place_on_node(void* address, uint64_t bytes, int node) {
    if (node == kNoNumaNode)
        return {};
    if (node < 0 || node >= kNodesMax)
        return fail(ErrorCode::kInvalidArgument, fmt::format("{} is no NUMA node", node));
    constexpr unsigned kWordBits = 8 * sizeof(unsigned long);
    std::array<unsigned long, kNodesMax / kWordBits> mask{};
    auto bit = static_cast<unsigned>(node);
    mask[bit / kWordBits] = 1UL << (bit % kWordBits);
    // The kernel takes one bit less than it is told.
    if (::syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, mask.data(),
                  static_cast<unsigned long>(kNodesMax) + 1, 0U) == 0)
        return {};
    int error_number = errno;
    auto error =
        fail_errno(fmt::format("mbind {} bytes to NUMA node {}", bytes, node), error_number);
    if (error_number == EPERM || error_number == ENOSYS)
        error.value().code = ErrorCode::kPermissionDenied;
    return error;
}

} // namespace berth
