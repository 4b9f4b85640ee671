// State of the machine: cores, memory, limits of a process, shared memory, disk, clock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tools/doctor/finding.h"

namespace ringside::tools {

// shared_bytes: shared memory that the run's weights need; 0 = unknown.
std::vector<Finding> machine_findings(int64_t shared_bytes);

// Free space of a folder's file system. Bad if nothing can be written there.
Finding disk_finding(const std::string& name, const std::filesystem::path& folder);

}  // namespace ringside::tools
