#include "rl/sampling/prompt_sampler.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/device/side_stream.h"
#include "rl/data/image_fields.h"
#include "rl/setup/image_input.h"

namespace ringside::rl {

PromptSampler::PromptSampler(const Config& config, const engine::ModelConfig& model)
    : config_(config.rollout),
      data_(config.data),
      kept_(config.model.vision == VisionPart::kFrozen ? std::make_shared<engine::KeptRows>()
                                                       : nullptr),
      positions_(engine::num_positions(model)),
      scorer_(config, model) {}

void PromptSampler::take_images(const std::string& files, std::span<const Prompt> prompts) {
  const bool any = std::any_of(prompts.begin(), prompts.end(),
                               [](const Prompt& prompt) { return !prompt.images.empty(); });
  if (any) {
    pixels_.push_back(prompt_pixels(files, data_, prompts, *scorer_.image_rules()));
  }
}

PromptSampler::Images PromptSampler::encode_images(
    const engine::Decoder& decoder, const std::vector<Prompt>& prompts,
    const std::vector<std::vector<int64_t>>& prompt_ids) const {
  std::vector<sp::ImageId> ids;
  std::map<std::string, std::size_t> place_of;  // among `ids`
  for (const Prompt& prompt : prompts) {
    for (const PromptImage& image : prompt.images) {
      if (place_of.try_emplace(image.hash, ids.size()).second) {
        ids.push_back(image_id(image.hash));
      }
    }
  }
  if (ids.empty()) {
    return {};
  }
  const auto rows =
      engine::encode_each(decoder, ids, image_input(any_of(pixels_), *scorer_.image_rules(), kept_),
                          engine::make_side_stream(decoder.context().device));
  Images images(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto spans = expanded_spans(prompt_ids[i], prompts[i].images, *scorer_.image_rules());
    for (std::size_t k = 0; k < spans.size(); ++k) {
      const std::string& hash = prompts[i].images[k].hash;
      images[i].push_back(
          {spans[k], hash,
           engine::split_levels(rows[place_of.at(hash)], decoder.config().hidden_size)});
    }
  }
  return images;
}

int64_t PromptSampler::fit_completions(const std::vector<Prompt>& prompts) {
  if (positions_ > 0 && positions_ < config_.max_prompt_tokens + config_.max_completion_tokens) {
    int64_t longest = 0;
    for (const Prompt& prompt : prompts) {
      longest = std::max(longest, static_cast<int64_t>(scorer_.encode(prompt).size()));
    }
    if (longest < positions_) {
      config_.max_completion_tokens = std::min(config_.max_completion_tokens, positions_ - longest);
    }
  }
  return config_.max_completion_tokens;
}

std::vector<ScoredCompletion> PromptSampler::sample(const engine::Decoder& decoder,
                                                    const std::vector<Prompt>& prompts,
                                                    const std::vector<uint64_t>& seeds,
                                                    const DrawOptions& draw) const {
  std::vector<std::vector<int64_t>> prompt_ids;
  for (const Prompt& prompt : prompts) {
    prompt_ids.push_back(scorer_.encode(prompt));
  }
  engine::SamplingParams params;
  params.temperature = draw.temperature;
  params.top_p = config_.top_p;
  params.top_k = config_.top_k;
  params.max_new_tokens = config_.max_completion_tokens;
  params.stop_ids = scorer_.stops();
  engine::GenerateOptions options;
  options.seeds = seeds;
  options.begun = draw.begun;
  options.should_stop = draw.should_stop;
  options.record_routes = draw.record_routes;
  options.record_kept = draw.record_kept;
  options.max_rows = kMostRows;
  options.cache_bytes = config_.cache_mb << 20;
  const Images images = encode_images(decoder, prompts, prompt_ids);
  options.images = images;
  auto completions = engine::generate(decoder, prompt_ids, params, options);
  return score_complete(prompts, std::move(prompt_ids), std::move(completions));
}

std::vector<ScoredCompletion> PromptSampler::score_complete(
    const std::vector<Prompt>& prompts, std::vector<std::vector<int64_t>> prompt_ids,
    std::vector<engine::Completion> completions) const {
  std::vector<ScoredCompletion> all(prompts.size());
  std::vector<std::size_t> complete;
  std::vector<Prompt> their_prompts;
  std::vector<std::vector<int64_t>> their_ids;
  std::vector<engine::Completion> theirs;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (completions[i].finish == engine::StopReason::kAborted) {
      all[i].prompt_ids = std::move(prompt_ids[i]);
      all[i].completion = std::move(completions[i]);
      continue;
    }
    complete.push_back(i);
    their_prompts.push_back(prompts[i]);
    their_ids.push_back(std::move(prompt_ids[i]));
    theirs.push_back(std::move(completions[i]));
  }
  auto scored = scorer_.score(their_prompts, std::move(their_ids), std::move(theirs));
  for (std::size_t k = 0; k < complete.size(); ++k) {
    all[complete[k]] = std::move(scored[k]);
  }
  return all;
}

}  // namespace ringside::rl
