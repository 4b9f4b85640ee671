// Trainer term: the number of a run's trainer start. Distinguishes equal version numbers of two
// starts.
#pragma once

#include <cstdint>
#include <filesystem>

namespace ringside::bridge {

// Raises the counter in `directory`/trainer_term by one, durably, and returns it: 1 at the first
// call. Creates the directory. Call it once per trainer start, from one process (rank 0).
// Throws: std::runtime_error when the file does not hold a number; std::system_error on I/O
// failures.
int64_t next_trainer_term(const std::filesystem::path& directory);

}  // namespace ringside::bridge
