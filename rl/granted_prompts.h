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
#include "rl/data/text_data.h"

namespace ringside::rl {

// Group g is item g of the endless data order over data.train: DataOrder(prompts, seed,
// data.shuffle).at(g). Torch-free.
class GrantedPrompts {
 public:
  // Throws std::invalid_argument without a prompt.
  GrantedPrompts(const Config& config, std::vector<Prompt> prompts, engine::Tokenizer tokenizer);

  // Null where it cannot be told: a prompt that the tokenizer does not read, or longer than
  // rollout.max_prompt_tokens, which is the worker's to leave out or to cut. Valid until the next
  // call. Not thread-safe.
  const std::vector<int64_t>* of(int64_t group_id);

 private:
  std::vector<Prompt> prompts_;
  DataOrder order_;
  engine::Tokenizer tokenizer_;
  int64_t max_tokens_;
  std::map<int64_t, std::vector<int64_t>>
      ids_;  // of the prompts asked for lately; empty: cannot be told
};

}  // namespace ringside::rl
