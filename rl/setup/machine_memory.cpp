#include "rl/setup/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "rl/report/byte_text.h"

namespace ringside::rl {
namespace fs = std::filesystem;
namespace {

// A line "NAME: N kB" of /proc/meminfo, in bytes.
int64_t meminfo_line(const fs::path& file, std::string_view name) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    int64_t kib = 0;
    if (word.ends_with(':') && word.substr(0, word.size() - 1) == name && in >> kib) {
      return kib * 1024;
    }
  }
  return 0;
}

// The number in a file; 0 for "max", for what v1 writes in the place of "none" (the largest number
// of whole pages), and without such a file.
int64_t limit_in(const fs::path& file) {
  constexpr uint64_t kNone = uint64_t{1} << 60;
  uint64_t bytes = 0;
  std::ifstream in(file);
  return in >> bytes && bytes < kNone ? static_cast<int64_t>(bytes) : 0;
}

// The lowest limit of a group and those above it, below `mount`. `group` may be a path of the host
// that a container does not see; then its mount's own limit counts.
int64_t lowest_limit(const fs::path& mount, fs::path group, const char* file) {
  int64_t lowest = 0;
  for (;; group = group.parent_path()) {
    if (const int64_t limit = limit_in(mount / group / file); limit > 0) {
      lowest = lowest > 0 ? std::min(lowest, limit) : limit;
    }
    if (group.empty()) {
      return lowest;
    }
  }
}

int64_t group_limit(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  int64_t lowest = 0;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "ID:CONTROLLERS:/PATH"
    std::istringstream fields(line);
    std::string id, controllers, path;
    std::getline(fields, id, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    const fs::path group = fs::path(path).relative_path();
    int64_t limit = 0;
    if (id == "0" && controllers.empty()) {
      limit = lowest_limit(mount, group, "memory.max");
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      limit = lowest_limit(mount / "memory", group, "memory.limit_in_bytes");
    }
    if (limit > 0) {
      lowest = lowest > 0 ? std::min(lowest, limit) : limit;
    }
  }
  return lowest;
}

}  // namespace

std::string MachineMemory::text() const {
  return byte_text(static_cast<double>(usable())) +
         (usable() < total ? " (the limit of its control group)" : "");
}

MachineMemory machine_memory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  MachineMemory memory;
  memory.total = meminfo_line(meminfo, "MemTotal");
  memory.available = meminfo_line(meminfo, "MemAvailable");
  memory.limit = group_limit(root);
  return memory;
}

}  // namespace ringside::rl
