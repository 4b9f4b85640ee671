// Log of trainer restarts and the weight version that each resumed from. Used to reject rollouts
// sampled from versions lost in a restart. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

namespace ringside::rl {

// Appends this start to `directory`/trainer_terms, durably. Creates the directory. Returns for each
// earlier term the last of its versions that the restored weights descend from: the lowest version
// that it or any later start resumed from.
// Throws: std::runtime_error naming file and line when the file does not hold pairs of rising terms
// and versions, or when `trainer_term` is not above them; std::system_error on an I/O error.
std::map<int64_t, int64_t> record_start(const std::filesystem::path& directory,
                                        int64_t trainer_term, int64_t restored_version);

}  // namespace ringside::rl
