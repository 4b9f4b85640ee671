// Which version every trainer start of a run began with: what tells whether the weights that a
// rollout was sampled under still exist. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

namespace ringside::rl {

// Adds this start to `directory`/trainer_terms, durably, and returns for each earlier start on
// record the last version of its term that the restored weights descend from: the lowest version
// that it or any later start went back to. Creates the directory. Throws std::runtime_error naming
// file and line when the file does not hold pairs of rising terms and versions, or `trainer_term`
// does not rise above them; std::system_error on I/O trouble.
std::map<int64_t, int64_t> record_start(const std::filesystem::path& directory,
                                        int64_t trainer_term, int64_t restored_version);

}  // namespace ringside::rl
