#include <algorithm>
#include <array>
#include <initializer_list>
#include <stdexcept>

#include "rl/config/environment_choice.h"
#include "rl/config/harness_function.h"
#include "rl/config/task.h"
#include "rl/config/teacher.h"
#include "rl/config/unread_keys.h"
#include "rl/rewards/weighted_rewards.h"

namespace ringside::rl {
namespace {

bool is_rl(const Config& c) { return samples_completions(c); }
bool is_sft(const Config& c) { return c.algorithm.task == Task::kSft; }
bool is_dpo(const Config& c) { return c.algorithm.task == Task::kDpo; }
bool reads_documents(const Config& c) { return !is_rl(c); }
bool may_have_reference(const Config& c) { return is_rl(c) || is_dpo(c); }
bool has_kl(const Config& c) { return c.algorithm.kl_coef > 0; }
bool evaluates(const Config& c) { return c.eval.every > 0; }
bool estimates_values(const Config& c) {
  return c.algorithm.advantage.estimator == AdvantageEstimator::kGae;
}
bool corrects(const Config& c) { return c.algorithm.correction.mode != CorrectionMode::kNone; }
// Estimators that compare the rewards of a group, one a sample.
bool compares_rewards(const Config& c) {
  const AdvantageEstimator estimator = c.algorithm.advantage.estimator;
  return estimator == AdvantageEstimator::kGroupMean || estimator == AdvantageEstimator::kRloo ||
         estimator == AdvantageEstimator::kPassAtK || estimator == AdvantageEstimator::kMaxRl ||
         estimator == AdvantageEstimator::kOpo;
}
bool has_server(const Config& c) { return c.rollout.server != RolloutServer::kEmbedded; }
bool uses_muon(const Config& c) { return c.optimizer.kind == OptimizerKind::kMuon; }
bool has_pools(const Config& c) { return c.data.curriculum.mode == "pools"; }
bool has_adapters(const Config& c) { return c.lora.rank > 0; }
bool shares_sequences(const Config& c) { return c.parallel.sequence_parallel_size() > 1; }

// Estimators that divide by a standard deviation.
bool may_divide(const Config& c) {
  const AdvantageEstimator estimator = c.algorithm.advantage.estimator;
  return estimator == AdvantageEstimator::kGroupMean || estimator == AdvantageEstimator::kRloo ||
         estimator == AdvantageEstimator::kPassAtK || estimator == AdvantageEstimator::kGdpo;
}
// Where nothing is divided, none says so and is no mistake.
bool reads_std(const Config& c) {
  return may_divide(c) || c.algorithm.advantage.std == AdvantageStd::kNone;
}
bool divides(const Config& c) {
  return may_divide(c) && c.algorithm.advantage.std != AdvantageStd::kNone;
}
bool discounts(const Config& c) {
  const AdvantageEstimator estimator = c.algorithm.advantage.estimator;
  return estimates_values(c) || estimator == AdvantageEstimator::kReinforce ||
         estimator == AdvantageEstimator::kOptimalTokenBaseline ||
         (has_kl(c) && c.algorithm.kl_in == KlIn::kAdvantage);
}

// Whether rollout.reward names one of these. A text that is no list of rewards is reported
// elsewhere.
bool rewards(const Config& c, std::initializer_list<std::string_view> names) {
  try {
    const auto parts = parse_rewards(c.rollout.reward);
    return std::any_of(parts.begin(), parts.end(), [&](const WeightedReward& part) {
      const std::string_view name = part.is_python() ? "python" : std::string_view(part.name);
      return std::find(names.begin(), names.end(), name) != names.end();
    });
  } catch (const std::invalid_argument&) {
    return true;
  }
}

// Ranks among which the model is cut, as far as that is known before context_parallel_size is
// split.
bool is_sharded(const Config& c) {
  const ParallelConfig& p = c.parallel;
  const bool all_axes = p.cp_fsdp_mode == CpFsdpMode::kAll;
  const bool some = p.cp_fsdp_mode != CpFsdpMode::kNone;
  const bool ulysses = some && (all_axes || p.cp_fsdp_mode == CpFsdpMode::kUlyssesOnly);
  const bool ring = some && (all_axes || p.cp_fsdp_mode == CpFsdpMode::kRingOnly);
  return p.data_parallel_shard_size > 1 || (ulysses && p.ulysses_parallel_size > 1) ||
         (ring && p.ringattn_parallel_size > 1) || (some && p.context_parallel_size > 1);
}

bool distils(const Config& c) { return has_teacher(c.algorithm); }
bool distils_by_loss(const Config& c) { return distils_distributions(c.algorithm); }

constexpr std::string_view kSftOnly = "only algorithm.task sft reads it; or algorithm.task sft";
constexpr std::string_view kDocumentsOnly =
    "only algorithm.task sft, dpo and reward_model read it; or one of these tasks";
constexpr std::string_view kPairsOnly =
    "only algorithm.task dpo and reward_model read it; or one of these tasks";
constexpr std::string_view kDpoOnly = "only algorithm.task dpo reads it; or algorithm.task dpo";
constexpr std::string_view kRlOnly =
    "only algorithm.task rl reads it: the others sample nothing and learn from data.sft or "
    "data.preferences; or algorithm.task rl";
constexpr std::string_view kReferenceOnly =
    "only algorithm.task rl and dpo have a reference policy; or one of these tasks";
constexpr std::string_view kEvaluation =
    "nothing is evaluated: eval.every is 0; or eval.every above 0";
constexpr std::string_view kNoKl =
    "there is no KL term: algorithm.kl_coef is 0; or kl_coef above 0";
constexpr std::string_view kNoCritic =
    "algorithm.advantage.estimator is not gae: it has no critic; or estimator gae";
constexpr std::string_view kNoCorrection =
    "algorithm.correction.mode is none; or another mode of correction";
constexpr std::string_view kNoPools =
    "data.curriculum.mode is none: there are no pools; or mode pools";
constexpr std::string_view kEmbedded =
    "rollout.server is embedded: there is no server; or rollout.server vllm, sglang, llama_cpp or "
    "python";
constexpr std::string_view kNoMuon =
    "optimizer.kind is adamw: it updates all parameters; or optimizer.kind muon";
constexpr std::string_view kNoAdapters =
    "lora.rank is 0: all weights are trained; or lora.rank above 0";
constexpr std::string_view kWhole =
    "every rank holds the whole model; or parallel.data_parallel_shard_size above 1 (or "
    "sequence-parallel ranks that parallel.cp_fsdp_mode names)";

// Keys of one task.
constexpr std::array kOfTasks = {
    UnreadRule{"train.epochs", "algorithm.task", reads_documents, kDocumentsOnly},
    UnreadRule{"train.batch_size", "algorithm.task", reads_documents, kDocumentsOnly},
    UnreadRule{"data.sft", "algorithm.task", is_sft, kSftOnly},
    UnreadRule{"data.sft_eval", "algorithm.task", is_sft, kSftOnly},
    UnreadRule{"data.max_length", "algorithm.task", reads_documents, kDocumentsOnly},
    UnreadRule{"data.preferences", "algorithm.task", learns_preferences, kPairsOnly},
    UnreadRule{"data.preferences_eval", "algorithm.task", learns_preferences, kPairsOnly},
    UnreadRule{"data.chosen_key", "algorithm.task", learns_preferences, kPairsOnly},
    UnreadRule{"data.rejected_key", "algorithm.task", learns_preferences, kPairsOnly},
    UnreadRule{"algorithm.preference.center_coef", "algorithm.task",
               [](const Config& c) { return c.algorithm.task == Task::kRewardModel; },
               "only algorithm.task reward_model reads it; or algorithm.task reward_model"},
    UnreadRule{"algorithm.preference.loss", "algorithm.task", is_dpo, kDpoOnly},
    UnreadRule{"algorithm.preference.beta", "algorithm.task", is_dpo, kDpoOnly},
    UnreadRule{"algorithm.preference.label_smoothing", "algorithm.task", is_dpo, kDpoOnly},
    UnreadRule{"algorithm.preference.sft_coef", "algorithm.task", is_dpo, kDpoOnly},
    UnreadRule{"algorithm.reference_update_every", "algorithm.task", may_have_reference,
               kReferenceOnly},
    UnreadRule{"algorithm.reference_mixup", "algorithm.task", may_have_reference, kReferenceOnly},
    UnreadRule{"data.completion_key", "algorithm.task", is_sft, kSftOnly},
    UnreadRule{"data.messages_key", "algorithm.task", is_sft, kSftOnly},
    UnreadRule{"algorithm.", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"rollout.", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"bridge.", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"weights.", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"data.train", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"data.answer_key", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"data.answer_after", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"data.text_prompts", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"data.system_prompt", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"data.prompt_suffix", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"data.curriculum.", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"train.shuffle_mini_batches", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"model.reference_path", "algorithm.task", may_have_reference, kReferenceOnly},
    UnreadRule{"lora.publish", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"lora.adapters", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"eval.temperature", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"eval.timeout_s", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"log.rollouts", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"log.samples", "algorithm.task", is_rl, kRlOnly},
    UnreadRule{"log.samples_after", "algorithm.task", is_rl, kRlOnly},
};

constexpr std::array kOfAlgorithms = {
    UnreadRule{"algorithm.kl_in", "algorithm.kl_coef", has_kl, kNoKl},
    UnreadRule{"algorithm.kl_to", "algorithm.kl_coef", has_kl, kNoKl},
    UnreadRule{"algorithm.kl_estimator", "algorithm.kl_coef", has_kl, kNoKl},
    UnreadRule{"algorithm.kl_bound", "algorithm.kl_coef", has_kl, kNoKl},
    UnreadRule{"algorithm.k3_bound", "algorithm.kl_coef", has_kl, kNoKl},
    UnreadRule{"algorithm.kl_horizon", "algorithm.kl_target",
               [](const Config& c) { return c.algorithm.kl_target > 0; },
               "algorithm.kl_target is 0: kl_coef does not adapt; or kl_target above 0"},
    UnreadRule{
        "model.reference_path", "algorithm.kl_coef", has_reference,
        "there is no reference policy: algorithm.kl_coef is 0 or kl_to is rollout; or kl_coef "
        "above 0 with kl_to reference"},
    UnreadRule{
        "algorithm.preference.label_smoothing", "algorithm.preference.loss",
        [](const Config& c) { return c.algorithm.preference.loss == PreferenceLoss::kSigmoid; },
        "algorithm.preference.loss ipo and hinge smooth no labels; or loss sigmoid"},
    UnreadRule{"algorithm.reference_mixup", "algorithm.reference_update_every",
               [](const Config& c) { return c.algorithm.reference_update_every > 0; },
               "algorithm.reference_update_every is 0: the reference does not move; or "
               "reference_update_every above 0"},
    UnreadRule{"algorithm.entropy_step", "algorithm.entropy_target",
               [](const Config& c) { return c.algorithm.entropy_target > 0; },
               "algorithm.entropy_target is 0: entropy_coef does not adapt; or entropy_target "
               "above 0"},
    UnreadRule{"algorithm.entropy_aggregation", "algorithm.entropy_coef",
               [](const Config& c) { return c.algorithm.entropy_coef > 0; },
               "there is no entropy bonus: algorithm.entropy_coef is 0; or entropy_coef above 0"},
    UnreadRule{
        "algorithm.loss_divisor", "algorithm.loss_aggregation",
        [](const Config& c) { return c.algorithm.loss_aggregation == LossAggregation::kConstant; },
        "algorithm.loss_aggregation is not constant; or loss_aggregation constant"},
    UnreadRule{"algorithm.reward.overlong_factor", "algorithm.reward.overlong_buffer_tokens",
               [](const Config& c) { return c.algorithm.reward.overlong_buffer_tokens > 0; },
               "algorithm.reward.overlong_buffer_tokens is 0; or overlong_buffer_tokens above 0"},
    UnreadRule{"algorithm.advantage.std", "algorithm.advantage.estimator", reads_std,
               "algorithm.advantage.estimator divides by no standard deviation; or estimator "
               "group_mean, rloo, pass_at_k or gdpo"},
    UnreadRule{"algorithm.advantage.eps", "algorithm.advantage.std", divides,
               "advantages are divided by no standard deviation; or algorithm.advantage.std other "
               "than none with estimator group_mean, rloo, pass_at_k or gdpo"},
    UnreadRule{"algorithm.advantage.unbiased", "algorithm.advantage.std", divides,
               "advantages are divided by no standard deviation; or algorithm.advantage.std other "
               "than none with estimator group_mean, rloo, pass_at_k or gdpo"},
    UnreadRule{"algorithm.advantage.whiten_eps", "algorithm.advantage.whiten",
               [](const Config& c) { return c.algorithm.advantage.whiten != Whiten::kNone; },
               "algorithm.advantage.whiten is none; or whiten tokens or sequences"},
    UnreadRule{"algorithm.advantage.whiten_eps_in", "algorithm.advantage.whiten",
               [](const Config& c) { return c.algorithm.advantage.whiten != Whiten::kNone; },
               "algorithm.advantage.whiten is none; or whiten tokens or sequences"},
    UnreadRule{"algorithm.advantage.gamma", "algorithm.advantage.estimator", discounts,
               "nothing is discounted; or estimator reinforce, optimal_token_baseline or gae, or "
               "algorithm.kl_in advantage"},
    UnreadRule{"algorithm.advantage.gpg_scale", "algorithm.advantage.estimator", compares_rewards,
               "algorithm.advantage.estimator does not compare one reward a sample with its group; "
               "or estimator group_mean, rloo, pass_at_k, max_rl or opo"},
    UnreadRule{"algorithm.advantage.lambda", "algorithm.advantage.estimator", estimates_values,
               kNoCritic},
    UnreadRule{"algorithm.distillation.", "algorithm.distillation.teacher", distils,
               "algorithm.distillation.teacher is not set: nothing is distilled; or a teacher"},
    UnreadRule{"algorithm.distillation.server_", "algorithm.distillation.teacher",
               [](const Config& c) { return has_server_teacher(c.algorithm.distillation); },
               "no teacher is on a server; or the address of one (http://host:port) as teacher"},
    UnreadRule{"data.source_key", "algorithm.distillation.teachers",
               [](const Config& c) { return !c.algorithm.distillation.teachers.empty(); },
               "algorithm.distillation.teachers is not set: nothing depends on the source; or "
               "several teachers"},
    UnreadRule{
        "algorithm.distillation.divergence", "algorithm.distillation.over", distils_by_loss,
        "over sampled_token is the reverse KL of the samples; or algorithm.distillation.over "
        "vocabulary or top_k"},
    UnreadRule{
        "algorithm.distillation.top_k", "algorithm.distillation.over",
        [](const Config& c) { return c.algorithm.distillation.over == DistillationOver::kTopK; },
        "algorithm.distillation.over is not top_k; or over top_k"},
    UnreadRule{"algorithm.distillation.mixture", "algorithm.distillation.divergence",
               [](const Config& c) {
                 return distils_by_loss(c) && c.algorithm.distillation.divergence ==
                                                  DistillationDivergence::kJensenShannon;
               },
               "only algorithm.distillation.divergence jensen_shannon has a mixture; or that "
               "divergence with over vocabulary or top_k"},
    UnreadRule{"algorithm.critic.", "algorithm.advantage.estimator", estimates_values, kNoCritic},
    UnreadRule{"algorithm.correction.level", "algorithm.correction.mode", corrects, kNoCorrection},
    UnreadRule{"algorithm.correction.low", "algorithm.correction.mode", corrects, kNoCorrection},
    UnreadRule{"algorithm.correction.high", "algorithm.correction.mode", corrects, kNoCorrection},
    UnreadRule{
        "algorithm.correction.normalize", "algorithm.correction.mode",
        [](const Config& c) {
          const CorrectionMode mode = c.algorithm.correction.mode;
          return mode == CorrectionMode::kTis || mode == CorrectionMode::kIcepop;
        },
        "algorithm.correction.mode has no importance weights that are divided; or mode tis or "
        "icepop"},
    UnreadRule{"algorithm.correction.drop_rejected", "algorithm.correction.reject",
               [](const Config& c) {
                 const CorrectionConfig& correction = c.algorithm.correction;
                 return !correction.reject.empty() || correction.mode == CorrectionMode::kMask ||
                        correction.mode == CorrectionMode::kSeqMaskTis;
               },
               "nothing is rejected; or algorithm.correction.reject, or mode mask or seq_mask_tis"},
    UnreadRule{
        "algorithm.correction.ratio_of", "algorithm.correction.mode",
        [](const Config& c) { return corrects(c) || !c.algorithm.correction.reject.empty(); },
        "nothing is corrected; or algorithm.correction.mode or reject"},
    UnreadRule{
        "algorithm.dynamic_sampling_by", "algorithm.dynamic_sampling",
        [](const Config& c) { return c.algorithm.dynamic_sampling != DynamicSampling::kNone; },
        "algorithm.dynamic_sampling is none: no groups are left out; or dynamic_sampling drop "
        "or refill"},
    UnreadRule{"algorithm.resampling.power", "algorithm.resampling.method",
               [](const Config& c) { return c.algorithm.resampling.method == "pow"; },
               "algorithm.resampling.method is not pow; or method pow"},
    UnreadRule{
        "algorithm.dynamic_sampling_rounds", "algorithm.dynamic_sampling",
        [](const Config& c) { return c.algorithm.dynamic_sampling == DynamicSampling::kRefill; },
        "algorithm.dynamic_sampling is not refill; or dynamic_sampling refill"},
};

constexpr std::array kOfRollouts = {
    UnreadRule{"data.curriculum.easy_above", "data.curriculum.mode", has_pools, kNoPools},
    UnreadRule{"data.curriculum.hard_below", "data.curriculum.mode", has_pools, kNoPools},
    UnreadRule{"data.curriculum.easy_share", "data.curriculum.mode", has_pools, kNoPools},
    UnreadRule{"data.curriculum.hard_share", "data.curriculum.mode", has_pools, kNoPools},
    UnreadRule{"rollout.reward_separator", "rollout.reward",
               [](const Config& c) {
                 return rewards(c, {"exact_match", "math_answer", "multiple_choice"});
               },
               "no reward of rollout.reward looks for a separator; or rollout.reward exact_match, "
               "math_answer or multiple_choice"},
    UnreadRule{"rollout.reward_options.tolerance", "rollout.reward",
               [](const Config& c) { return rewards(c, {"math_answer"}); },
               "rollout.reward has no math_answer; or math_answer in rollout.reward"},
    UnreadRule{"rollout.reward_options.regex", "rollout.reward",
               [](const Config& c) { return rewards(c, {"regex"}); },
               "rollout.reward has no regex; or regex in rollout.reward"},
    UnreadRule{"rollout.reward_options.json_schema", "rollout.reward",
               [](const Config& c) { return rewards(c, {"json_schema"}); },
               "rollout.reward has no json_schema; or json_schema in rollout.reward"},
    UnreadRule{"rollout.reward_options.repetition_ngram", "rollout.reward",
               [](const Config& c) { return rewards(c, {"repetition"}); },
               "rollout.reward has no repetition; or repetition in rollout.reward"},
    UnreadRule{"rollout.reward_options.code_", "rollout.reward",
               [](const Config& c) { return rewards(c, {"code_tests"}); },
               "rollout.reward has no code_tests; or code_tests in rollout.reward"},
    UnreadRule{"rollout.reward_options.http_", "rollout.reward",
               [](const Config& c) { return rewards(c, {"http"}); },
               "rollout.reward has no http; or http in rollout.reward"},
    UnreadRule{"rollout.reward_options.judge_", "rollout.reward",
               [](const Config& c) { return rewards(c, {"judge"}); },
               "rollout.reward has no judge; or judge in rollout.reward"},
    UnreadRule{"rollout.reward_options.python_", "rollout.reward",
               [](const Config& c) { return rewards(c, {"python"}); },
               "rollout.reward has no python(FILE:FUNCTION); or such a function in "
               "rollout.reward"},
    UnreadRule{"rollout.partial_rollout", "algorithm.max_staleness",
               [](const Config& c) {
                 return c.algorithm.max_staleness > 0 && !has_server(c) &&
                        c.rollout.harness.empty();
               },
               "the embedded worker of synchronous training, a server "
               "(rollout.server_options.pause) and a harness have no completions to go on with; or "
               "algorithm.max_staleness above 0, rollout.server embedded and no rollout.harness"},
    UnreadRule{"rollout.min_group_size", "rollout.straggler_timeout_s",
               [](const Config& c) { return c.rollout.straggler_timeout_s > 0; },
               "rollout.straggler_timeout_s is 0: all completions are waited for; or "
               "straggler_timeout_s above 0"},
    UnreadRule{"rollout.server_options.", "rollout.server", has_server, kEmbedded},
    UnreadRule{"rollout.harness_options.", "rollout.harness",
               [](const Config& c) { return has_sessions(c.rollout); },
               "rollout.harness is empty: a sample is one completion; or a rollout.harness or "
               "rollout.environment"},
    UnreadRule{"rollout.environment_options", "rollout.environment",
               [](const Config& c) { return !c.rollout.environment.empty(); },
               "rollout.environment is empty: nothing has options; or a rollout.environment"},
    UnreadRule{"rollout.harness_options.python_command", "rollout.harness",
               [](const Config& c) { return c.rollout.harness != kExternalHarness; },
               "the worker does not start the harness; or rollout.harness python(FILE:FUNCTION)"},
    UnreadRule{"rollout.server_options.model", "rollout.server",
               [](const Config& c) { return c.rollout.server == RolloutServer::kVllm; },
               "only rollout.server vllm has names of models; or rollout.server vllm"},
    UnreadRule{"rollout.server_options.weights_directory", "rollout.server_options.weights",
               [](const Config& c) {
                 const ServerWeights weights = c.rollout.server_options.weights;
                 return weights != ServerWeights::kPull && weights != ServerWeights::kEngine;
               },
               "weights do not go through a directory; or rollout.server_options.weights disk, "
               "restart or auto"},
    UnreadRule{"rollout.server_options.start_command", "rollout.server_options.weights",
               [](const Config& c) {
                 const ServerWeights weights = c.rollout.server_options.weights;
                 return weights == ServerWeights::kRestart || weights == ServerWeights::kAuto;
               },
               "the worker does not start the server; or rollout.server_options.weights restart or "
               "auto"},
    UnreadRule{"weights.full_every", "weights.encoding",
               [](const Config& c) { return c.weights.encoding == WeightEncoding::kAuto; },
               "weights.encoding dense sends whole tensors always; or encoding auto"},
    UnreadRule{"weights.keep", "weights.directory",
               [](const Config& c) { return !c.weights.directory.empty(); },
               "weights.directory is empty: no version is written to disk; or a weights.directory"},
};

constexpr std::array kOfTraining = {
    UnreadRule{"model.init_std", "model.init",
               [](const Config& c) { return c.model.init == ModelInit::kRandom; },
               "model.init pretrained draws no weights; or init random"},
    UnreadRule{"model.vision", "data.image_key",
               [](const Config& c) { return !c.data.image_key.empty(); },
               "data.image_key is not set: the model has no vision tower; or data.image_key"},
    UnreadRule{"optimizer.min_lr_ratio", "optimizer.lr_schedule",
               [](const Config& c) { return c.optimizer.lr_schedule != LrDecay::kConstant; },
               "optimizer.lr_schedule constant does not fall; or lr_schedule linear or cosine"},
    UnreadRule{"optimizer.weight_decay_of", "optimizer.weight_decay",
               [](const Config& c) { return c.optimizer.weight_decay > 0; },
               "optimizer.weight_decay is 0: nothing decays; or weight_decay above 0"},
    UnreadRule{"optimizer.muon.", "optimizer.kind", uses_muon, kNoMuon},
    UnreadRule{"lora.alpha", "lora.rank", has_adapters, kNoAdapters},
    UnreadRule{"lora.target_modules", "lora.rank", has_adapters, kNoAdapters},
    UnreadRule{"lora.path", "lora.rank", has_adapters, kNoAdapters},
    UnreadRule{"lora.adapters", "lora.rank", has_adapters, kNoAdapters},
    UnreadRule{"data.adapter_key", "lora.adapters",
               [](const Config& c) { return !c.lora.adapters.empty(); },
               "no record names an adapter: lora.adapters is empty; or lora.adapters"},
    UnreadRule{"lora.base", "lora.rank", has_adapters, kNoAdapters},
    UnreadRule{"lora.publish", "lora.rank", has_adapters, kNoAdapters},
    UnreadRule{"parallel.zero_stage", "parallel.data_parallel_shard_size",
               [](const Config& c) {
                 return is_sharded(c) || c.optimizer.offload == OptimizerOffload::kFull;
               },
               kWhole},
    UnreadRule{"parallel.reduce_dtype", "parallel.data_parallel_shard_size", is_sharded, kWhole},
    UnreadRule{"parallel.pipeline_schedule", "parallel.pipeline_parallel_size",
               [](const Config& c) { return c.parallel.pipeline_parallel_size > 1; },
               "parallel.pipeline_parallel_size is 1: there is one stage; or "
               "pipeline_parallel_size above 1"},
    UnreadRule{"parallel.group_scope", "parallel.context_parallel_size", shares_sequences,
               "one rank has a sequence to itself: there are no sequence-parallel groups; or "
               "parallel.context_parallel_size above 1"},
    UnreadRule{"eval.before_training", "eval.every", evaluates, kEvaluation},
    UnreadRule{"eval.max_prompts", "eval.every", evaluates, kEvaluation},
    UnreadRule{"eval.samples", "eval.every", evaluates, kEvaluation},
    UnreadRule{"eval.temperature", "eval.every", evaluates, kEvaluation},
    UnreadRule{"log.samples_after", "log.samples",
               [](const Config& c) { return c.log.samples > 0; },
               "log.samples is 0: no completions are written; or log.samples above 0"},
    UnreadRule{
        "eval.timeout_s", "eval.by",
        [](const Config& c) { return evaluates(c) && c.eval.by == EvalBy::kWorkers; },
        "eval.by is embedded or eval.every is 0: no worker evaluates; or eval.by workers with "
        "eval.every above 0"},
};

template <std::size_t... kSizes>
constexpr auto joined(const std::array<UnreadRule, kSizes>&... parts) {
  std::array<UnreadRule, (kSizes + ...)> all{};
  std::size_t at = 0;
  ((std::copy(parts.begin(), parts.end(), all.begin() + at), at += kSizes), ...);
  return all;
}

constexpr auto kRules = joined(kOfTasks, kOfAlgorithms, kOfRollouts, kOfTraining);

}  // namespace

std::span<const UnreadRule> unread_rules() { return kRules; }

}  // namespace ringside::rl
