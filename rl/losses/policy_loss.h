// Interface of a policy loss, and the table of all. A loss is one file of this folder: its name,
// its keys with their defaults, bounds and sentences, its term per token, and what it needs beside
// the probability ratio. The configuration takes keys and sentences from here.
// Torch-free.
// Thread safety: pure functions and constants.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace at {
class Tensor;
}

namespace ringside::rl {

struct LossInputs;  // loss_inputs.h

// A key of a loss, algorithm.BLOCK.NAME: a number, or one of a list of words.
struct LossKey {
  std::string_view name;
  double value = 0.0;  // the default; of words the index
  std::string_view sentence;
  // Bounds of a number; `above` excludes the lower.
  double low = -std::numeric_limits<double>::max();
  double high = std::numeric_limits<double>::max();
  bool above = false;
  std::span<const std::string_view> words = {};
};

// The values of all losses' keys.
class LossValues {
 public:
  // All defaults.
  LossValues();
  // The value of a key by its dotted name, "kl_cov.ratio". References live as long as the object.
  // Throws: std::out_of_range for a name that no loss has.
  double& at(std::string_view name);
  double at(std::string_view name) const;

 private:
  std::map<std::string, double, std::less<>> values_;
};

// What a loss reads of the configuration: its own keys, and the bounds of what it clips.
struct LossOptions {
  double clip_low = 0.0;
  double clip_high = 0.0;
  std::string_view block;  // of the loss's keys
  const LossValues& values;

  // The value of one of the loss's keys.
  double operator[](const LossKey& key) const;
};

// Loss tokens of a mini-batch over all ranks, for a loss that treats some of them apart.
// Shapes: both [count].
struct ChoicePart {
  std::span<const double> advantage;
  std::span<const double> old;  // log-probs of the old policy
  uint64_t begin = 0;           // place of the first of these tokens in its step
  uint64_t seed = 0;            // where a random choice starts
};

// A key whose value contradicts others, and what is wrong: "is 1.0" goes before `problem`.
struct LossMistake {
  std::string_view key;
  std::string problem;
};

struct PolicyLoss {
  std::string_view name;
  std::string_view sentence;  // what it is, in a few words
  // What algorithm.clip_low and clip_high bound; empty: the loss clips nothing.
  std::string_view clip_low = {};
  std::string_view clip_high = {};
  // Its keys, in a block of its name or of `shared_block`.
  std::span<const LossKey> keys = {};
  std::string_view shared_block = {};
  // Whether the ratio may be that of a sequence (algorithm.importance_level).
  bool takes_sequence_ratio = false;
  // The loss of each token, [n], differentiable with respect to logprob_n.
  at::Tensor (*term)(const LossInputs& in);
  // The log ratio of a loss that does not take that of algorithm.importance_level, [n]; nullptr =
  // it does. in.log_ratio_n: of the token, logprob - old, bounded.
  at::Tensor (*own_log_ratio)(const LossInputs& in) = nullptr;
  // The bounds (low, high) outside which the clip metrics count a ratio as clipped; nullptr =
  // 1 - clip_low and 1 + clip_high.
  std::pair<double, double> (*clip_range)(const LossOptions& options) = nullptr;
  // 1 for the tokens that the term treats apart, 0 for others, [count]; nullptr = it treats none.
  std::vector<double> (*choose)(const ChoicePart& part, const LossOptions& options) = nullptr;
  // What is wrong with the values of its keys beyond their bounds; nothing = none.
  std::optional<LossMistake> (*check)(const LossOptions& options) = nullptr;

  std::string_view block() const { return shared_block.empty() ? name : shared_block; }
};

// The losses, in the order of documents and messages.
std::span<const PolicyLoss* const> policy_losses();

// The loss of that name.
// Throws: std::invalid_argument for a name that is not in the table.
const PolicyLoss& policy_loss(std::string_view name);

// The bounds (low, high) outside which the clip metrics count a ratio as clipped.
std::pair<double, double> ratio_bounds(const PolicyLoss& loss, const LossOptions& options);

// Sentences that several losses share.
inline constexpr std::string_view kRatioClippedLow = "the ratio is clipped below 1 - clip_low";
inline constexpr std::string_view kRatioClippedHigh = "the ratio is clipped above 1 + clip_high";

}  // namespace ringside::rl
