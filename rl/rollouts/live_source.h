// Live rollout source on trainer rank 0: a RolloutIntake made from the configuration, which also
// publishes the model's weights.
#pragma once

#include <filesystem>
#include <memory>

#include "rl/config/config.h"
#include "rl/rollouts/rollout_source.h"

namespace ringside::rl {

// Binds the endpoints, replays the journal under run_dir/bridge and raises the trainer term.
// Records the version that this term starts with in run_dir/bridge/trainer_terms. Writes the bound
// addresses to run_dir/bridge/endpoint.json, where workers of the run read them. With
// algorithm.dynamic_sampling = refill, groups whose total rewards are all equal are replaced by
// other prompts. Rollouts are checked by LiveAdmission, workers by shared_settings(). data.train
// and the tokenizer are read if they are present.
// last_step: no group of a later step is granted. restored_version: version of the weights the
// trainer starts with. curriculum_state: TrainingState::curriculum of the checkpoint that it
// resumes from, else "". Blocks: until the journal is replayed and data.train is read and
// tokenized. Throws: std::runtime_error naming the key for an address that cannot be bound; what
// RolloutIntake, record_start, next_trainer_term, trainer_options, load_model_config,
// load_prompt_set, parse_rewards, Tokenizer::load and Curriculum throw; for data.curriculum where
// the trainer cannot read the prompts.
std::unique_ptr<RolloutSource> make_live_source(const Config& config, const std::string& run_id,
                                                const std::filesystem::path& run_dir,
                                                int64_t restored_version, int64_t last_step,
                                                const std::string& curriculum_state = "");

}  // namespace ringside::rl
