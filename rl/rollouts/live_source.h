// The live side of a run on trainer rank 0: a RolloutIntake made from the configuration, fed with
// the model's weights.
#pragma once

#include <filesystem>
#include <memory>

#include "rl/config/config.h"
#include "rl/rollouts/rollout_source.h"

namespace ringside::rl {

// What weights.publish_dtype comes to.
DType published_dtype(const Config& config);

// Binds the endpoints, replays the journal under run_dir/bridge, raises the trainer term, keeps
// which version it began with in run_dir/bridge/trainer_terms, and writes the bound addresses to
// run_dir/bridge/endpoint.json for workers that are started beside the run. With
// algorithm.dynamic_sampling = refill, groups whose total rewards are all equal are replaced.
// Rollouts are held to LiveAdmission, workers to shared_settings(): data.train and the tokenizer
// are read where they are there. `last_step`: no group is granted beyond it. restored_version:
// version of the weights the trainer starts with. Throws what RolloutIntake, record_start,
// parse_rewards, read_prompts and Tokenizer::load throw.
std::unique_ptr<RolloutSource> make_live_source(const Config& config, const std::string& run_id,
                                                const std::filesystem::path& run_dir,
                                                int64_t restored_version, int64_t last_step);

}  // namespace ringside::rl
