#include "rl/rollouts/granted_prompts.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::rl {

GrantedPrompts::GrantedPrompts(const Config& config, PromptSet prompts, engine::Tokenizer tokenizer)
    : prompts_(std::move(prompts)),
      order_(prompts_.parts, config),
      tokenizer_(std::move(tokenizer)),
      rules_(prompt_rules(config)) {}

const std::vector<int64_t>* GrantedPrompts::of(int64_t group_id) {
  // Number of cached prompts; the samples of a group arrive close together.
  constexpr std::size_t kKept = 4096;
  const int64_t index = order_.at(group_id);
  auto found = ids_.find(index);
  if (found == ids_.end()) {
    if (ids_.size() >= kKept) {
      ids_.clear();
    }
    std::vector<int64_t> ids;
    try {
      ids = prompt_ids(prompts_.prompts[index], rules_, tokenizer_);
    } catch (const std::exception&) {
      ids.clear();  // the worker has the same error and logs it
    }
    found = ids_.emplace(index, std::move(ids)).first;
  }
  return found->second.empty() ? nullptr : &found->second;
}

GrantedAnswers::GrantedAnswers(const Config& config, const PromptSet& prompts)
    : order_(prompts.parts, config) {
  for (const Prompt& prompt : prompts.prompts) {
    answers_.push_back(prompt.answer);
    kinds_.push_back(prompt.kind);
  }
}

}  // namespace ringside::rl
