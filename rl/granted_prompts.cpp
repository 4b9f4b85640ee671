#include "rl/granted_prompts.h"

#include <stdexcept>
#include <utility>

namespace ringside::rl {

GrantedPrompts::GrantedPrompts(const Config& config, std::vector<Prompt> prompts,
                               engine::Tokenizer tokenizer)
    : prompts_(std::move(prompts)),
      order_(static_cast<int64_t>(prompts_.size()), static_cast<uint64_t>(config.seed),
             config.data.shuffle),
      tokenizer_(std::move(tokenizer)),
      max_tokens_(config.rollout.max_prompt_tokens) {}

const std::vector<int64_t>* GrantedPrompts::of(int64_t group_id) {
  constexpr std::size_t kKept = 4096;  // prompts; the samples of a group come close together
  const int64_t index = order_.at(group_id);
  auto found = ids_.find(index);
  if (found == ids_.end()) {
    if (ids_.size() >= kKept) {
      ids_.clear();
    }
    std::vector<int64_t> ids;
    try {
      ids = tokenizer_.encode(prompts_[index].prompt);
    } catch (const std::invalid_argument&) {
      ids.clear();  // the worker meets the same and says so
    }
    if (static_cast<int64_t>(ids.size()) > max_tokens_) {
      ids.clear();
    }
    found = ids_.emplace(index, std::move(ids)).first;
  }
  return found->second.empty() ? nullptr : &found->second;
}

}  // namespace ringside::rl
