#include "rl/trainer/learner.h"

#include <ATen/ATen.h>

#include <utility>

#include "rl/algorithm/adaptive.h"
#include "rl/config/teacher.h"
#include "rl/data/data_order.h"
#include "rl/data/sample_order.h"
#include "rl/setup/image_input.h"

namespace ringside::rl {
namespace {

constexpr const char* kReferencePart = "reference";
constexpr const char* kTeacherPart = "teacher";
constexpr const char* kCriticPart = "critic";
// Streams of random numbers: the draw of a step's samples, their order in a pass.
constexpr uint64_t kDrawStream = 0x64726177u;
constexpr uint64_t kOrderStream = 0x6f72646572u;

// The seed of a pass's order. model: 0 the policy, 1 a critic with passes of its own.
uint64_t pass_seed(const Config& config, int64_t step, int64_t pass, uint64_t model) {
  return mix_seed({static_cast<uint64_t>(config.seed), kOrderStream, static_cast<uint64_t>(step),
                   static_cast<uint64_t>(pass), model});
}

}  // namespace

Learner::Learner(const Config& config, const RunRanks& ranks, PolicyTraining& policy,
                 TrainingState& state)
    : config_(config),
      ranks_(ranks),
      policy_(policy),
      state_(state),
      reference_(make_reference(config, policy.runner().model(), ranks.comms())),
      teachers_(make_teachers(config, policy.runner().model(), ranks.comms())) {
  if (config.algorithm.advantage.estimator == AdvantageEstimator::kGae) {
    critic_ = std::make_unique<Critic>(config, ranks.comms());
  }
}

void Learner::take_images(const std::function<RecordPixels::Image(const std::string& hash)>& pixels,
                          const ImageRules& rules) {
  // Constant towers of one directory are alike.
  const auto kept = std::make_shared<engine::KeptRows>();
  const auto kept_of = [&](const std::string& other_path) {
    return other_path.empty() ? kept : std::make_shared<engine::KeptRows>();
  };
  policy_.runner().take_images(image_input(pixels, rules, kept));
  if (reference_) {
    reference_->runner().take_images(
        image_input(pixels, rules, kept_of(config_.model.reference_path)));
  }
  if (teachers_) {
    for (const auto& teacher : teachers_->models()) {
      teacher->runner().take_images(image_input(pixels, rules, kept_of(teacher->entry().place)));
    }
  }
  if (critic_) {
    critic_->runner().take_images(
        image_input(pixels, rules, kept_of(config_.algorithm.critic.model_path)));
  }
}

std::vector<LearnerModel> Learner::checkpointed_models() {
  std::vector<LearnerModel> models;
  if (reference_ && reference_->moves()) {
    models.push_back({kReferencePart, &reference_->runner()});
  }
  if (critic_) {
    models.push_back({kCriticPart, &critic_->runner(), &std::as_const(*critic_).model()});
  }
  return models;
}

RankFacts Learner::loaded_facts() const {
  RankFacts facts;
  if (reference_) {
    facts.push_back(weights_fact(kReferencePart, reference_->runner()));
  }
  if (teachers_) {
    for (const auto& teacher : std::as_const(*teachers_).models()) {
      const std::string& source = teacher->entry().source;
      facts.push_back(weights_fact(source.empty() ? kTeacherPart : kTeacherPart + (" " + source),
                                   teacher->runner()));
    }
  }
  if (critic_) {
    facts.push_back(weights_fact(kCriticPart, critic_->runner()));
  }
  return facts;
}

std::vector<LocalBatch> Learner::collate(StepBatch& batch) const {
  std::vector<LocalBatch> mini_batches;
  for (const MiniBatch& mini_batch : batch.mini_batches) {
    LocalBatch& local = mini_batches.emplace_back(
        LocalBatch{policy_.collate(mini_batch.documents), mini_batch.first_token});
    if (config_.algorithm.router_replay == RouterReplay::kRollout) {
      for (const sp::MicroBatch& micro_batch : local.micro_batches) {
        local.routes.push_back(routes_of(micro_batch, policy_.decoder().config()));
      }
    }
    apply_micro_batch_mean(batch.columns, mini_batches.back(), config_.algorithm.loss_aggregation,
                           ranks_.comms());
  }
  return mini_batches;
}

std::vector<LocalBatch> Learner::seen_by(const engine::ModelRunner& model,
                                         const StepBatch& batch) const {
  std::vector<LocalBatch> seen;
  for (const MiniBatch& mini_batch : batch.mini_batches) {
    seen.push_back(
        {policy_.collate_for(model.decoder(), mini_batch.documents), mini_batch.first_token});
  }
  return seen;
}

void Learner::score(std::vector<LocalBatch>& mini_batches, StepBatch& batch) const {
  ScoringModels models{policy_.runner(), reference_ ? &reference_->runner() : nullptr,
                       critic_ ? &critic_->runner() : nullptr, teachers_.get()};
  if (reference_ && !config_.model.reference_path.empty()) {
    models.seen_by_reference = seen_by(reference_->runner(), batch);
  }
  if (teachers_) {
    if (teachers_->servers().any()) {
      models.served = teachers_->servers().ask(batch.mini_batches, batch.columns, ranks_.world(),
                                               ranks_.round());
    }
    for (const auto& teacher : std::as_const(*teachers_).models()) {
      models.seen_by_teachers.push_back(seen_by(teacher->runner(), batch));
    }
  }
  score_step(batch.columns, mini_batches, models, config_, ranks_.comms());
}

StepAdvantages Learner::compute_advantages(StepBatch& batch) {
  const CorrectionConfig& correction = config_.algorithm.correction;
  correction_ =
      corrects(correction) ? correction_weights(batch.columns, correction) : CorrectionResult{};
  batch.columns.correction = correction_.weight;
  StepAdvantages advantages = step_advantages(
      batch.columns, batch.rewards, config_.rollout.group_size, config_.algorithm, state_.kl_coef);
  batch.columns.advantage = advantages.advantage;
  batch.columns.returns = advantages.returns;
  if (correction.drop_rejected) {
    batch.columns.kept.assign(correction_.kept.begin(), correction_.kept.end());
    drop_rejected(batch.columns, config_.algorithm.loss_aggregation);
  }
  choose_tokens(batch);
  return advantages;
}

void Learner::choose_tokens(StepBatch& batch) const {
  const PolicyLoss& loss = rl::policy_loss(config_.algorithm.loss);
  if (loss.choose == nullptr) {
    return;
  }
  StepColumns& columns = batch.columns;
  for (const MiniBatch& mini_batch : batch.mini_batches) {
    // Tokens have another place in another step, so the step's number is part of the seed.
    const auto part_of = [&](const std::vector<double>& column) {
      return std::span(column).subspan(mini_batch.first_token, mini_batch.loss_tokens);
    };
    const ChoicePart part{
        part_of(columns.advantage), part_of(columns.old),
        static_cast<uint64_t>(mini_batch.first_token),
        static_cast<uint64_t>(config_.seed) * 0x2545f4914f6cdd1dULL + state_.step};
    const auto of_part = loss.choose(part, loss_options(config_.algorithm));
    columns.chosen.insert(columns.chosen.end(), of_part.begin(), of_part.end());
  }
}

void Learner::observe_entropy(const UpdateResult& update) {
  state_.entropy = update.figures["entropy"];
  state_.entropy_coef = next_entropy_coef(state_.entropy_coef, state_.entropy, config_.algorithm);
}

LossFunction Learner::policy_loss(const MiniBatch& mini_batch) const {
  const LossContext context{
      state_.kl_coef, acting_entropy_coef(state_.entropy_coef, state_.entropy, config_.algorithm),
      mini_batch.loss_tokens, static_cast<int64_t>(mini_batch.documents.size()),
      ranks_.comms().tensors(sp::axes::kSp).get()};
  return [this, context](const engine::HeadOutput& output, const engine::Columns& columns,
                         Figures& figures) {
    at::Tensor loss =
        policy_gradient_loss(output.logprobs_n, output.entropy_n, columns, config_.algorithm,
                             context, figures, output.whole_logprobs_n);
    if (distils_distributions(config_.algorithm)) {
      loss =
          loss + teachers_->distillation_loss(policy_.runner().model(), output, columns, figures);
    }
    return loss;
  };
}

// Calls `train` with the mini-batches of a pass: those of the step, or others of the same samples.
void Learner::run_pass(const StepBatch& batch, const std::vector<LocalBatch>& mini_batches,
                       const PassPlan& plan, const PassOver& train) const {
  const bool as_scored = config_.algorithm.resampling.method == "none" &&
                         !config_.train.shuffle_mini_batches &&
                         plan.num_mini_batches == config_.train.num_mini_batches;
  if (as_scored) {
    train(batch, mini_batches);
    return;
  }
  const auto order = pass_order(plan.drawn, config_.train.shuffle_mini_batches, plan.seed);
  StepBatch arranged = arranged_batch(batch, order, plan.num_mini_batches, config_);
  drop_rejected(arranged.columns, config_.algorithm.loss_aggregation);
  choose_tokens(arranged);
  const auto local = collate(arranged);
  train(arranged, local);
}

// The passes of a critic that has its own.
void Learner::train_critic(const StepBatch& batch, const std::vector<LocalBatch>& mini_batches,
                           const std::vector<int64_t>& drawn, StepUpdates& updates) {
  const CriticConfig& critic = config_.algorithm.critic;
  const int64_t passes =
      critic.num_iterations > 0 ? critic.num_iterations : config_.algorithm.num_iterations;
  const int64_t divided =
      critic.num_mini_batches > 0 ? critic.num_mini_batches : config_.train.num_mini_batches;
  for (int64_t pass = 0; pass < passes; ++pass) {
    run_pass(batch, mini_batches, {drawn, divided, pass_seed(config_, state_.step, pass, 1)},
             [&](const StepBatch& step, const std::vector<LocalBatch>& local) {
               for (std::size_t b = 0; b < local.size(); ++b) {
                 update_critic(local[b], step.mini_batches[b], step.columns, updates);
               }
             });
  }
}

StepUpdates Learner::update(const std::vector<LocalBatch>& mini_batches, const StepBatch& batch,
                            std::span<const double> scores) {
  StepUpdates updates;
  updates.correction = correction_;
  updates.kl_coef = state_.kl_coef;
  const AlgorithmConfig& algorithm = config_.algorithm;
  const bool policy_learns = !critic_ || state_.step >= algorithm.critic.warmup_steps;
  std::vector<int64_t> drawn;
  if (rearranges(config_)) {
    drawn = drawn_samples(scores, batch.trained, algorithm.resampling,
                          mix_seed({static_cast<uint64_t>(config_.seed), kDrawStream,
                                    static_cast<uint64_t>(state_.step)}));
  }
  const bool critic_apart = critic_has_own_passes(config_);
  if (critic_apart) {
    train_critic(batch, mini_batches, drawn, updates);
  }
  const int64_t passes = policy_learns || !critic_apart ? algorithm.num_iterations : 0;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const PassPlan plan{drawn, config_.train.num_mini_batches,
                        pass_seed(config_, state_.step, pass, 0)};
    run_pass(batch, mini_batches, plan,
             [&](const StepBatch& step, const std::vector<LocalBatch>& local) {
               for (std::size_t b = 0; b < local.size(); ++b) {
                 const MiniBatch& mini_batch = step.mini_batches[b];
                 if (critic_ && !critic_apart) {
                   update_critic(local[b], mini_batch, step.columns, updates);
                 }
                 if (policy_learns) {
                   updates.policy.push_back(
                       policy_.update(local[b], step.columns, policy_loss(mini_batch)));
                   observe_entropy(updates.policy.back());
                 }
               }
             });
  }
  return updates;
}

void Learner::update_critic(const LocalBatch& local, const MiniBatch& mini_batch,
                            const StepColumns& columns, StepUpdates& updates) {
  const double rate = config_.algorithm.critic.learning_rate * policy_.learning_rate_factor();
  try {
    updates.critic.push_back(
        critic_->update(local, columns, static_cast<double>(mini_batch.loss_tokens), rate));
  } catch (const engine::Diverged& error) {
    throw engine::Diverged(std::string("critic: ") + error.what());
  }
}

void Learner::adapt(const StepUpdates& updates, const StepAdvantages& advantages, int64_t samples) {
  const AlgorithmConfig& algorithm = config_.algorithm;
  const double kl =
      algorithm.kl_in == KlIn::kLoss ? merged_figures(updates.policy)["kl"] : advantages.kl;
  state_.kl_coef = next_kl_coef(state_.kl_coef, kl, samples, algorithm);
  if (reference_) {
    reference_->follow(policy_.runner(), state_.step + 1);
  }
}

}  // namespace ringside::rl
