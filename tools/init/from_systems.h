// What the keys of each system mean here where the table of names does not say it: units, defaults
// of the other system that differ, keys that only together have a meaning.
#pragma once

#include <cstdint>
#include <string>

#include "tools/init/translator.h"

namespace ringside::tools {

// verl 0.9.1, `verl.trainer.main_ppo`. Source: verl/trainer/config (ppo_trainer.yaml and the files
// that it names).
void from_verl(Translator& keys);

// TRL 1.16.0, GRPOConfig and SFTConfig with ModelConfig and ScriptArguments. `processes`: those
// that train, 0 = as the file says, else one. Source: trl/trainer, trl/scripts.
void from_trl(Translator& keys, bool supervised, int64_t processes);

// The part of GRPOConfig that axolotl has too. `prefix`: "" or "trl."; per_step: optimizer steps of
// a step.
void grpo_of_trl(Translator& keys, const std::string& prefix, int64_t per_step);

// axolotl 0.19: supervised, or `rl: grpo`. Source: src/axolotl/utils/schemas.
void from_axolotl(Translator& keys, int64_t processes);

// OpenRLHF 0.11.2, `openrlhf.cli.train_ppo_ray` and `train_sft`, with the names of 0.9 beside
// those of 0.11. Source: openrlhf/cli.
void from_openrlhf(Translator& keys, bool supervised);

}  // namespace ringside::tools
