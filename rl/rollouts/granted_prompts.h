// Token ids of the prompt, and the reference answer, of a granted group.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/group_prompts.h"
#include "rl/data/prompt_set.h"
#include "rl/data/text_data.h"

namespace ringside::rl {

// Maps group g to its prompt in data.train, as GroupPrompts does. Torch-free.
// Thread safety: none.
class GrantedPrompts {
 public:
  // Throws: std::invalid_argument without a prompt.
  GrantedPrompts(const Config& config, PromptSet prompts, engine::Tokenizer tokenizer);

  // The ids as a worker sends them: truncated if data.on_overlong is truncate. nullptr for a prompt
  // that the tokenizer cannot encode. The pointer is valid until the next call.
  // group_id: at least 0.
  const std::vector<int64_t>* of(int64_t group_id);

 private:
  PromptSet prompts_;
  GroupPrompts order_;
  engine::Tokenizer tokenizer_;
  PromptRules rules_;
  // Token ids of recently requested prompts; empty: cannot be encoded.
  std::map<int64_t, std::vector<int64_t>> ids_;
};

// The reference answers of the same groups, and the kinds of their records.
// Thread safety: none.
class GrantedAnswers {
 public:
  // Throws: std::invalid_argument without a prompt.
  GrantedAnswers(const Config& config, const PromptSet& prompts);

  // Empty if the record has none. group_id: at least 0.
  const std::string& of(int64_t group_id) { return answers_[order_.at(group_id)]; }
  // Prompt::kind. group_id: at least 0.
  int64_t kind(int64_t group_id) { return kinds_[order_.at(group_id)]; }

 private:
  std::vector<std::string> answers_;  // by prompt
  std::vector<int64_t> kinds_;        // by prompt
  GroupPrompts order_;
};

}  // namespace ringside::rl
