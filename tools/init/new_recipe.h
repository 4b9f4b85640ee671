// Recipe that `ringside init` writes.
#pragma once

#include <cstdint>
#include <string>

#include "tools/init/data_sample.h"

namespace ringside::tools {

struct RecipeAnswers {
  std::string model;  // a Hugging Face directory
  std::string data;   // a file
  std::string task;   // "sft", or text for rollout.reward
  int64_t gpus = 0;   // of this machine; 0 = CPU
  std::string run_dir;
  std::string folder;  // of the recipe: paths below it are written relative to it
};

// The text of a recipe for the answers. Lengths come from the model's positions and the longest
// prompt of the data. The chat template is the model's own, else that of the markers that the
// tokenizer knows. Prompts that are text become a user's messages if the model has a template.
// Throws: std::runtime_error when model or data cannot be read, and for chat messages when the
// model has neither a template nor known markers.
std::string new_recipe(const RecipeAnswers& answers, const DataSample& sample);

}  // namespace ringside::tools
