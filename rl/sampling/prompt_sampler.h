// Sampler of completions from our own decoder, with their rewards. The embedded worker, the
// trainer's evaluation and `ringside generate` use it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "engine/models/encode_images.h"
#include "rl/data/record_pixels.h"
#include "rl/sampling/prompt_scorer.h"

namespace ringside::rl {

// Completions that are computed together; the others begin as these end.
inline constexpr int64_t kMostRows = 256;

// How completions are drawn.
struct DrawOptions {
  double temperature = 1;      // 0: greedy
  bool record_routes = false;  // completions bring the experts that their tokens used
  bool record_kept = false;    // completions bring the ids that top_p and top_k left
  // What each completion has already (engine::GenerateOptions::begun); empty: nothing.
  std::span<const engine::Completion> begun = {};
  // True ends completions that are not complete; they are returned with StopReason::kAborted, and
  // without rewards.
  std::function<bool()> should_stop = {};
};

class PromptSampler {
 public:
  // Throws: what PromptScorer's constructor throws.
  PromptSampler(const Config& config, const engine::ModelConfig& model);

  const engine::Tokenizer& tokenizer() const { return scorer_.tokenizer(); }

  // Lets these prompts of data files have images, beside those of other files.
  // files: as data_file_entries() in rl/config/data_files.h.
  // Throws: as RecordPixels.
  void take_images(const std::string& files, std::span<const Prompt> prompts);

  // Lowers rollout.max_completion_tokens to what the model's positions leave after the longest of
  // these prompts, if they leave anything; for commands whose recipe does not set it.
  // Returns the length in use. Throws: what PromptScorer::encode throws.
  int64_t fit_completions(const std::vector<Prompt>& prompts);

  // One completion per prompt, prompt i with seeds[i], within the lengths of config.rollout and
  // with keys and values of rollout.cache_mb at most. Several threads compute the rewards.
  // Blocks: until all completions are sampled and scored.
  // Shapes: seeds is as long as prompts. The decoder is whole on this process.
  // Throws: what PromptScorer::encode, engine::generate and RecordPixels throw.
  std::vector<ScoredCompletion> sample(const engine::Decoder& decoder,
                                       const std::vector<Prompt>& prompts,
                                       const std::vector<uint64_t>& seeds,
                                       const DrawOptions& draw) const;

  const std::vector<int64_t>& stops() const { return scorer_.stops(); }

 private:
  using Images = std::vector<std::vector<engine::PromptImageRows>>;

  // The rows of each prompt's images.
  Images encode_images(const engine::Decoder& decoder, const std::vector<Prompt>& prompts,
                       const std::vector<std::vector<int64_t>>& prompt_ids) const;

  // Rewards of those that are complete.
  std::vector<ScoredCompletion> score_complete(const std::vector<Prompt>& prompts,
                                               std::vector<std::vector<int64_t>> prompt_ids,
                                               std::vector<engine::Completion> completions) const;

  RolloutConfig config_;
  DataConfig data_;
  std::vector<std::shared_ptr<RecordPixels>> pixels_;
  std::shared_ptr<engine::KeptRows> kept_;  // of a constant tower; null: it may change
  int64_t positions_;                       // of the model; 0: not known
  PromptScorer scorer_;
};

}  // namespace ringside::rl
