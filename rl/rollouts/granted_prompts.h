// Token ids of the prompt that a group id stands for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/data_order.h"
#include "rl/data/prompt_set.h"
#include "rl/data/text_data.h"

namespace ringside::rl {

// Group g is item g of the endless data order over data.train: DataOrder(prompts, seed,
// data.shuffle).at(g). Torch-free.
class GrantedPrompts {
 public:
  // Throws std::invalid_argument without a prompt.
  GrantedPrompts(const Config& config, std::vector<Prompt> prompts, engine::Tokenizer tokenizer);

  // As the worker sends them: cut where data.on_overlong is truncate. Null for a prompt that the
  // tokenizer does not read. Valid until the next call. Not thread-safe.
  const std::vector<int64_t>* of(int64_t group_id);

 private:
  std::vector<Prompt> prompts_;
  DataOrder order_;
  engine::Tokenizer tokenizer_;
  PromptLimit limit_;
  std::map<int64_t, std::vector<int64_t>>
      ids_;  // of the prompts asked for lately; empty: cannot be told
};

}  // namespace ringside::rl
