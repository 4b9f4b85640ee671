// Records of a run's starts and of their ends: when, from which step, on what machine, with which
// versions; how it ended. One JSON object per line in RUN_DIR/starts.jsonl and RUN_DIR/ends.jsonl.
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
void append_start(const std::filesystem::path& path, int64_t step, int64_t steps,
                  const Facts& facts);

// The "steps" of one line of that file; nullopt if it is no such line.
std::optional<int64_t> steps_of_start(const std::string& line);

// Appends {"time", "start", "how", "reason"} to RUN_DIR/ends.jsonl; start: the newest line of
// RUN_DIR/starts.jsonl, counted from 1. how: "finished", "stopped" (reason: by which signal) or
// "failed" (reason: the error). A process that is killed leaves no end,
// and so does a file that cannot be written.
void append_end(const std::filesystem::path& run_dir, const std::string& how,
                const std::string& reason);

}  // namespace ringside::rl
