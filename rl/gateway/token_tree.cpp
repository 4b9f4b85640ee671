#include "rl/gateway/token_tree.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::rl {

std::size_t TokenTree::branch_of(int64_t token) const {
  const auto after =
      std::upper_bound(branches_.begin(), branches_.end(), token,
                       [](int64_t index, const Branch& branch) { return index < branch.begin; });
  return static_cast<std::size_t>(after - branches_.begin()) - 1;
}

TokenTree::Match TokenTree::match(int64_t end, std::span<const int64_t> ids) const {
  Match longest{end, 0};
  std::vector<Match> open{longest};  // sequences from which other branches may go on
  while (!open.empty()) {
    Match reached = open.back();
    open.pop_back();
    if (reached.tokens > longest.tokens) {
      longest = reached;
    }
    const auto next = static_cast<std::size_t>(reached.tokens);
    if (next == ids.size()) {
      continue;
    }
    const auto [first, last] = forks_.equal_range(reached.end);
    for (auto fork = first; fork != last; ++fork) {
      if (ids_[fork->second] == ids[next]) {
        open.push_back({fork->second + 1, reached.tokens + 1});
      }
    }
    const bool goes_on = reached.end < size() &&
                         (reached.end == 0 || branch_of(reached.end) == branch_of(reached.end - 1));
    if (goes_on && ids_[reached.end] == ids[next]) {
      open.push_back({reached.end + 1, reached.tokens + 1});
    }
  }
  return longest;
}

int64_t TokenTree::add(int64_t end, std::span<const int64_t> context,
                       const SampledTokens& sampled) {
  if (sampled.ids.empty() || sampled.logprobs.size() != sampled.ids.size()) {
    throw std::invalid_argument("token tree: " + std::to_string(sampled.ids.size()) +
                                " sampled tokens with " + std::to_string(sampled.logprobs.size()) +
                                " log-probs; expected at least one, and as many");
  }
  if (end < 0 || end > size()) {
    throw std::invalid_argument("token tree: no sequence ends at " + std::to_string(end));
  }
  const Match known = match(end, context);
  if (known.end == 0 && size() > 0) {
    throw std::invalid_argument(
        "this request begins with another token than the first one of the rollout; what all of a "
        "rollout's requests begin with is its prompt");
  }
  if (known.end != size() || size() == 0) {
    if (std::ssize(branches_) > kMaxBranches) {
      throw std::invalid_argument("a rollout can fork " + std::to_string(kMaxBranches) +
                                  " times, and this one has");
    }
    if (size() > 0) {
      forks_.emplace(known.end, size());
    }
    branches_.push_back({size(), known.end});
  }
  const std::span<const int64_t> added = context.subspan(known.tokens);
  ids_.insert(ids_.end(), added.begin(), added.end());
  logprobs_.resize(ids_.size(), 0.0F);
  is_sampled_.resize(ids_.size(), 0);
  if (turns_.empty()) {
    trainer_term_ = sampled.trainer_term;
  }
  turns_.push_back(size());
  ids_.insert(ids_.end(), sampled.ids.begin(), sampled.ids.end());
  logprobs_.insert(logprobs_.end(), sampled.logprobs.begin(), sampled.logprobs.end());
  is_sampled_.resize(ids_.size(), 1);
  versions_.resize(ids_.size(), sampled.version);
  return size();
}

std::vector<int64_t> TokenTree::sequence(int64_t end) const {
  std::vector<int64_t> reversed;
  while (end > 0) {
    const Branch& branch = branches_[branch_of(end - 1)];
    for (int64_t token = end; token-- > branch.begin;) {
      reversed.push_back(ids_[token]);
    }
    end = branch.context_end;
  }
  return {reversed.rbegin(), reversed.rend()};
}

// What all sequences begin with, as far as nothing of it was sampled.
int64_t TokenTree::prompt_tokens() const {
  int64_t tokens = turns_.front();
  for (const Branch& branch : std::span(branches_).subspan(1)) {
    tokens = std::min(tokens, branch.context_end);
  }
  return tokens;
}

void TokenTree::write(bridge::Rollout& rollout) const {
  if (branches_.empty()) {
    throw std::invalid_argument("token tree: nothing was sampled");
  }
  const int64_t prompt = prompt_tokens();
  rollout.prompt_ids.assign(ids_.begin(), ids_.begin() + prompt);
  rollout.completion_ids.assign(ids_.begin() + prompt, ids_.end());
  rollout.logprobs.assign(logprobs_.begin() + prompt, logprobs_.end());
  rollout.loss_mask.assign(is_sampled_.begin() + prompt, is_sampled_.end());
  rollout.versions.clear();
  for (int64_t token = prompt; token < size(); ++token) {
    const int64_t place = token - prompt;
    if (rollout.versions.empty() || rollout.versions.back().version != versions_[token]) {
      rollout.versions.push_back({versions_[token], place, place});
    }
    rollout.versions.back().end = place + 1;
  }
  rollout.trainer_term = trainer_term_;
  rollout.turn_offsets.clear();
  for (const int64_t turn : turns_) {
    rollout.turn_offsets.push_back(static_cast<int32_t>(turn - prompt));
  }
  rollout.branches.clear();
  for (const Branch& branch : std::span(branches_).subspan(1)) {
    rollout.branches.push_back({branch.begin - prompt, branch.context_end - prompt});
  }
}

}  // namespace ringside::rl
