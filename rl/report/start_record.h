// Record of a start of a run: when, from which step, on what machine, with which versions. One JSON
// object per line in RUN_DIR/starts.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ringside::rl {

using Facts = std::vector<std::pair<std::string, std::string>>;

// host, cpu, cores, memory and system of this machine; without those that cannot be found out.
Facts machine_facts();

// Appends {"time", "step", "steps", ...facts}. step: the last one done before this start. steps:
// how many in all.
// Throws: std::runtime_error when the file cannot be written.
void append_start(const std::filesystem::path& path, std::int64_t step, std::int64_t steps,
                  const Facts& facts);

// The "steps" of one line of that file; nullopt if it is no such line.
std::optional<std::int64_t> steps_of_start(const std::string& line);

}  // namespace ringside::rl
