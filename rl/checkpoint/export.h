// Hugging Face directories made of checkpoints, of language models and of reward models.
#pragma once

#include <filesystem>

#include "engine/runner/model_runner.h"

namespace ringside::rl {

// What a checkpoint holds besides its parts, in CHECKPOINT/model: the config.json and tokenizer of
// the policy or reward model, so that the checkpoint can be exported without the model that
// training started from, and where the tensors are that the run does not train: a vision tower's,
// and those of layers that predict further tokens. tokenizer_from: the directory of that model.
// Throws: std::system_error on a write failure.
void write_model_description(const std::filesystem::path& checkpoint,
                             const engine::HeadedModel& model,
                             const std::filesystem::path& tokenizer_from);

// Writes the policy or reward model of a checkpoint as a Hugging Face directory, in the dtype of
// its config.json. Only one tensor at a time is in memory. All parts are verified first. Tensors
// that the run does not train are those of the model that it started from. Blocks:
// on the disk. Throws: std::runtime_error as CheckpointReader, when `dir` exists and is not empty,
// and when the checkpoint holds adapters alone, or that model's directory lacks such a tensor;
// std::system_error on a write failure. `dir` then stays as it was.
void export_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& dir);

}  // namespace ringside::rl
