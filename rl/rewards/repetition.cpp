#include "rl/rewards/repetition.h"

#include <functional>
#include <unordered_set>

namespace ringside::rl {
namespace {

constexpr std::string_view kSpace = " \t\n\r\v\f";
constexpr uint64_t kBase = 0x9E3779B97F4A7C15ULL;  // odd, so that multiplication loses no bits

std::vector<uint64_t> word_hashes(std::string_view text) {
  std::vector<uint64_t> words;
  std::size_t begin = text.find_first_not_of(kSpace);
  while (begin != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    words.push_back(std::hash<std::string_view>{}(text.substr(begin, end - begin)));
    begin = text.find_first_not_of(kSpace, end);
  }
  return words;
}

// A rolling polynomial over the words' hashes: constant time per word for any n.
double repeated_share(const std::vector<uint64_t>& words, std::size_t n) {
  if (words.size() < n) {
    return 0.0;
  }
  uint64_t leaving = 1;
  for (std::size_t i = 0; i < n; ++i) {
    leaving *= kBase;
  }
  std::unordered_set<uint64_t> seen;
  uint64_t hash = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    hash = hash * kBase + words[i] - (i >= n ? leaving * words[i - n] : 0);
    if (i + 1 >= n) {
      seen.insert(hash);
    }
  }
  const std::size_t total = words.size() - n + 1;
  return static_cast<double>(total - seen.size()) / static_cast<double>(total);
}

}  // namespace

Reward repetition_reward(const RewardOptions& options) {
  if (options.repetition_ngram < 1) {
    throw std::invalid_argument("repetition: n-grams of " +
                                std::to_string(options.repetition_ngram) +
                                " words; expected at least 1");
  }
  const auto n = static_cast<std::size_t>(options.repetition_ngram);
  return [n](const RewardInput& input) {
    return 0.0 - repeated_share(word_hashes(input.completion), n);
  };
}

}  // namespace ringside::rl
