// Memory that the processes of this machine may use: what it has, and the limit of their control
// group.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ringside::rl {

// Bytes. 0: not known.
struct MachineMemory {
  int64_t total = 0;      // of the machine
  int64_t available = 0;  // without swapping, when it was read
  int64_t limit = 0;      // the lowest of this process's control group and those above it; 0: none

  // What a run can have at most.
  int64_t usable() const { return limit > 0 && limit < total ? limit : total; }
  // "23.5 GiB", or "4.00 GiB (the limit of its control group)".
  std::string text() const;
};

// Reads /proc/meminfo, and memory.max (cgroup v2) or memory.limit_in_bytes (v1).
// root: of the file system, for tests.
// Thread safety: pure but for the files. Never throws: what cannot be read is not known.
MachineMemory machine_memory(const std::filesystem::path& root = "/");

}  // namespace ringside::rl
