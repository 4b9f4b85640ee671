// The count of a run's trainer starts: what tells a version of this start from one of the last.
#pragma once

#include <cstdint>
#include <filesystem>

namespace ringside::bridge {

// Raises the counter kept in `directory`/trainer_term by one, durably, and returns it; 1 at the
// first call. Creates the directory. Throws std::runtime_error when the file holds anything but a
// number and std::system_error on I/O trouble. Call it once per trainer start, from one process
// (rank 0).
int64_t next_trainer_term(const std::filesystem::path& directory);

}  // namespace ringside::bridge
