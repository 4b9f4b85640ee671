#include "rl/data/training_batch.h"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <string>

#include "rl/algorithm/advantages.h"
#include "rl/algorithm/loss_weights.h"
#include "rl/data/conversation_images.h"
#include "rl/data/rollout_rewards.h"
#include "rl/data/token_routes.h"
#include "rollout_bridge/protocol/branches.h"
#include "sp/batch/next_ids.h"
#include "sp/layout/range.h"

namespace ringside::rl {
namespace {

// Which completion tokens of a rollout carry loss.
std::vector<bool> loss_mask_of(const bridge::Rollout& rollout, bool trained,
                               const AlgorithmConfig& config) {
  const bool truncated =
      config.mask_truncated && rollout.finish_reason == bridge::FinishReason::kLength;
  std::vector<bool> mask(rollout.completion_ids.size(), trained && !truncated);
  for (std::size_t i = 0; i < rollout.loss_mask.size(); ++i) {
    mask[i] = mask[i] && rollout.loss_mask[i] != 0;
  }
  return mask;
}

// The ids that a branch continues, its own included.
std::vector<int64_t> ids_of(const bridge::Rollout& rollout, const bridge::BranchPath& path) {
  std::vector<int64_t> ids = rollout.prompt_ids;
  for (const bridge::TokenRange& range : path.ranges) {
    ids.insert(ids.end(), rollout.completion_ids.begin() + range.begin,
               rollout.completion_ids.begin() + range.end);
  }
  return ids;
}

sp::Document make_document(const bridge::Rollout& rollout, const bridge::BranchPath& path,
                           const std::vector<bool>& mask, int64_t index, int64_t kind,
                           const TokenRoutes& routes) {
  const bridge::TokenRange own = path.own();
  sp::Document document;
  document.kind = kind;
  document.ids = ids_of(rollout, path);
  if (routes.any()) {
    document.fields.push_back(routes.field(rollout, path));
  }
  const int64_t own_begin = static_cast<int64_t>(document.ids.size()) - (own.end - own.begin);
  for (int64_t i = own.begin; i < own.end; ++i) {
    if (mask[i]) {
      document.entries.add(own_begin + (i - own.begin) - 1, rollout.completion_ids[i], index);
    }
  }
  document.ids.pop_back();  // the last token is only a target
  return document;
}

// The kept sets of the tokens that carry loss. Fails for one whose set was not recorded.
TokenSets kept_sets_of(std::span<const bridge::Rollout> rollouts,
                       const std::vector<std::vector<bool>>& masks) {
  TokenSets sets{{0}, {}};
  for (std::size_t r = 0; r < rollouts.size(); ++r) {
    const bridge::KeptSets& kept = rollouts[r].kept_sets;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < masks[r].size(); ++i) {
      const std::size_t count = kept.empty() ? 0 : kept.counts[i];
      if (masks[r][i] && count == 0) {
        throw std::invalid_argument("rollout " + rollouts[r].rollout_id +
                                    " brings no kept set for completion token " +
                                    std::to_string(i));
      }
      if (masks[r][i]) {
        sets.add(std::span(kept.ids).subspan(begin, count));
      }
      begin += count;
    }
  }
  return sets;
}

StepColumns make_columns(std::span<const bridge::Rollout> rollouts,
                         const std::vector<std::vector<bool>>& masks,
                         const AlgorithmConfig& config) {
  StepColumns columns;
  columns.begin.push_back(0);
  for (std::size_t r = 0; r < rollouts.size(); ++r) {
    for (std::size_t i = 0; i < masks[r].size(); ++i) {
      if (masks[r][i]) {
        columns.rollout.push_back(rollouts[r].logprobs[i]);
        columns.temperature.push_back(rollouts[r].temperature);
        if (config.advantage.estimator == AdvantageEstimator::kGiven) {
          columns.given.push_back(rollouts[r].advantages[i]);
        }
      }
    }
    columns.begin.push_back(static_cast<int64_t>(columns.rollout.size()));
  }
  if (config.logprobs_over == "kept") {
    columns.kept_sets = kept_sets_of(rollouts, masks);
  }
  return columns;
}

// Sets the weight of each loss token of a mini-batch's rollouts. Rollouts that are not trained on
// count in no denominator.
void set_weights(StepColumns& columns, sp::Range part, const std::vector<bool>& trained,
                 const Config& config) {
  std::vector<int64_t> loss_tokens;
  for (int64_t r = part.begin; r < part.end; ++r) {
    if (trained[r]) {
      loss_tokens.push_back(columns.begin[r + 1] - columns.begin[r]);
    }
  }
  // 0 means the longest possible completion, as in TRL's dr_grpo.
  const double divisor = config.algorithm.loss_divisor > 0
                             ? config.algorithm.loss_divisor
                             : static_cast<double>(config.rollout.max_completion_tokens);
  const auto of_trained = loss_weights(loss_tokens, config.algorithm.loss_aggregation, divisor);
  std::size_t next = 0;
  for (int64_t r = part.begin; r < part.end; ++r) {
    const double weight = trained[r] ? of_trained[next++] : 0.0;
    columns.weight.insert(columns.weight.end(), columns.begin[r + 1] - columns.begin[r], weight);
  }
}

// images: null when no rollout of the step has one.
// documents_of: appends how many each rollout is.
MiniBatch make_mini_batch(std::span<const bridge::Rollout> rollouts,
                          const std::vector<std::vector<bool>>& masks, const StepColumns& columns,
                          const TokenRoutes& routes, const StepImages* images,
                          std::span<const int64_t> kinds, sp::Range part,
                          std::vector<int64_t>& documents_of) {
  MiniBatch batch;
  batch.first_token = columns.begin[part.begin];
  batch.loss_tokens = columns.begin[part.end] - batch.first_token;
  for (int64_t r = part.begin; r < part.end; ++r) {
    const auto paths = bridge::branch_paths(rollouts[r]);
    documents_of.push_back(static_cast<int64_t>(paths.size()));
    for (const bridge::BranchPath& path : paths) {
      const auto index = static_cast<int64_t>(batch.documents.size());
      const int64_t kind = kinds.empty() ? 0 : kinds[r];
      batch.documents.push_back(make_document(rollouts[r], path, masks[r], index, kind, routes));
      if (images != nullptr) {
        const auto of_prompt = images->of_rollout.empty() ? std::span<const PlacedImage>()
                                                          : std::span(images->of_rollout[r]);
        add_image_fields(batch.documents.back(),
                         document_images(rollouts[r], path, of_prompt, images->patch),
                         images->merge);
      }
    }
  }
  return batch;
}

// Whether each sample is trained on. Excluded are failed samples and groups without variance.
std::vector<bool> trained_samples(std::span<const bridge::Rollout> rollouts, const Config& config) {
  std::vector<bool> trained;
  for (const bridge::Rollout& rollout : rollouts) {
    trained.push_back(is_scored(rollout));
  }
  if (config.algorithm.dynamic_sampling == DynamicSampling::kNone) {
    return trained;
  }
  const int64_t group_size = config.rollout.group_size;
  const auto recipe = parse_rewards(config.rollout.reward);
  std::vector<double> values;
  std::vector<bool> has_value;
  for (const bridge::Rollout& rollout : rollouts) {
    const std::optional<double> value = compared_by(rollout, recipe, config);
    values.push_back(value.value_or(0.0));
    has_value.push_back(value.has_value());
  }
  const auto equal = groups_without_variance(values, group_size, has_value);
  for (std::size_t r = 0; r < rollouts.size(); ++r) {
    trained[r] = trained[r] && !equal[r / static_cast<std::size_t>(group_size)];
  }
  return trained;
}

// The reward of the greedy rollout of each sample's group, shaped as the samples' own.
std::vector<double> baselines(std::span<const bridge::Rollout> greedy, const Config& config) {
  const auto recipe = parse_rewards(config.rollout.reward);
  std::vector<double> of_samples;
  for (const bridge::Rollout& rollout : greedy) {
    const double reward = is_scored(rollout) ? shaped_reward(rollout, recipe, config) : 0.0;
    of_samples.insert(of_samples.end(), config.rollout.group_size, reward);
  }
  return of_samples;
}

// Of each sample of a batch.
std::vector<std::vector<const sp::Document*>> documents_by_sample(const StepBatch& batch) {
  std::vector<std::vector<const sp::Document*>> of_samples;
  std::vector<const sp::Document*> all;
  for (const MiniBatch& mini_batch : batch.mini_batches) {
    for (const sp::Document& document : mini_batch.documents) {
      all.push_back(&document);
    }
  }
  auto next = all.begin();
  for (const int64_t count : batch.documents_of) {
    of_samples.emplace_back(next, next + count);
    next += count;
  }
  return of_samples;
}

// The columns of these samples, without weights and chosen tokens, which hold for mini-batches.
StepColumns arranged_columns(const StepColumns& columns, std::span<const int64_t> order) {
  constexpr std::array kColumns = {
      &StepColumns::rollout,   &StepColumns::old,     &StepColumns::reference,
      &StepColumns::value,     &StepColumns::given,   &StepColumns::temperature,
      &StepColumns::advantage, &StepColumns::returns, &StepColumns::correction,
      &StepColumns::kept,      &StepColumns::squares, &StepColumns::teacher};
  StepColumns arranged;
  arranged.begin.push_back(0);
  for (const int64_t sample : order) {
    if (sample < 0 || sample >= columns.samples()) {
      throw std::invalid_argument("sample " + std::to_string(sample) + " of a step of " +
                                  std::to_string(columns.samples()));
    }
    const int64_t begin = columns.begin[sample], end = columns.begin[sample + 1];
    arranged.begin.push_back(arranged.begin.back() + end - begin);
    for (const auto column : kColumns) {
      const std::vector<double>& from = columns.*column;
      if (!from.empty()) {
        (arranged.*column)
            .insert((arranged.*column).end(), from.begin() + begin, from.begin() + end);
      }
    }
    if (columns.kept_sets.any()) {
      arranged.kept_sets.add(columns.kept_sets, begin, end);
    }
  }
  return arranged;
}

}  // namespace

StepBatch make_step_batch(std::span<const bridge::Rollout> rollouts, const Config& config,
                          const StepImages& images, std::span<const bridge::Rollout> greedy,
                          std::span<const int64_t> kinds) {
  if (!kinds.empty() && kinds.size() != rollouts.size()) {
    throw std::invalid_argument("kinds of " + std::to_string(kinds.size()) +
                                " rollouts in a step of " + std::to_string(rollouts.size()));
  }
  if (images.any() && images.of_rollout.size() != rollouts.size()) {
    throw std::invalid_argument("images of " + std::to_string(images.of_rollout.size()) +
                                " rollouts in a step of " + std::to_string(rollouts.size()));
  }
  auto trained = trained_samples(rollouts, config);
  for (std::size_t r = 0; r < rollouts.size() && !greedy.empty(); ++r) {
    trained[r] =
        trained[r] && is_scored(greedy[r / static_cast<std::size_t>(config.rollout.group_size)]);
  }
  std::vector<std::vector<bool>> masks;
  for (std::size_t r = 0; r < rollouts.size(); ++r) {
    masks.push_back(loss_mask_of(rollouts[r], trained[r], config.algorithm));
  }
  StepBatch batch;
  batch.columns = make_columns(rollouts, masks, config.algorithm);
  batch.rewards = sample_rewards(rollouts, masks, batch.columns, config);
  batch.rewards.baseline = baselines(greedy, config);
  const bool replays = config.algorithm.router_replay == RouterReplay::kRollout;
  const TokenRoutes routes(replays ? rollouts : std::span<const bridge::Rollout>{});
  const bool have_images = images.any() || have_conversation_images(rollouts);
  const int64_t num_mini_batches = config.train.num_mini_batches;
  for (int64_t b = 0; b < num_mini_batches; ++b) {
    const sp::Range part =
        sp::even_part(static_cast<int64_t>(rollouts.size()), num_mini_batches, b);
    set_weights(batch.columns, part, trained, config);
    batch.mini_batches.push_back(make_mini_batch(rollouts, masks, batch.columns, routes,
                                                 have_images ? &images : nullptr, kinds, part,
                                                 batch.documents_of));
  }
  batch.trained = trained;
  if (config.model.mtp_loss_coef > 0) {
    for (MiniBatch& mini_batch : batch.mini_batches) {
      std::ranges::for_each(mini_batch.documents, sp::add_next_ids);
    }
  }
  return batch;
}

StepBatch arranged_batch(const StepBatch& batch, std::span<const int64_t> order,
                         int64_t num_mini_batches, const Config& config) {
  const auto samples = static_cast<int64_t>(order.size());
  if (samples < num_mini_batches) {
    throw std::invalid_argument(std::to_string(samples) + " samples in " +
                                std::to_string(num_mini_batches) + " mini-batches");
  }
  const auto documents = documents_by_sample(batch);
  StepBatch arranged;
  arranged.columns = arranged_columns(batch.columns, order);
  for (const int64_t sample : order) {
    arranged.documents_of.push_back(batch.documents_of.at(sample));
    arranged.trained.push_back(batch.trained.at(sample));
  }
  for (int64_t b = 0; b < num_mini_batches; ++b) {
    const sp::Range part = sp::even_part(samples, num_mini_batches, b);
    set_weights(arranged.columns, part, arranged.trained, config);
    MiniBatch& mini_batch = arranged.mini_batches.emplace_back();
    mini_batch.first_token = arranged.columns.begin[part.begin];
    mini_batch.loss_tokens = arranged.columns.begin[part.end] - mini_batch.first_token;
    for (int64_t i = part.begin; i < part.end; ++i) {
      for (const sp::Document* document : documents[order[i]]) {
        const auto index = static_cast<int64_t>(mini_batch.documents.size());
        mini_batch.documents.push_back(*document);
        std::ranges::fill(mini_batch.documents.back().entries.sample, index);
      }
    }
  }
  return arranged;
}

sp::Document make_scored_document(std::vector<int64_t> ids, int64_t first_target) {
  const auto length = static_cast<int64_t>(ids.size());
  if (first_target < 1 || first_target > length) {
    throw std::invalid_argument("first target " + std::to_string(first_target) +
                                " of a document of " + std::to_string(length) + " tokens");
  }
  sp::Document document;
  for (int64_t t = first_target; t < length; ++t) {
    document.entries.add(t - 1, ids[t]);
  }
  document.ids = std::move(ids);
  document.ids.pop_back();
  return document;
}

}  // namespace ringside::rl
