// Configuration of a run: one plain struct per section of the YAML tree.
//
// Every member is one key. Its initialiser is its default. Its row says which values it accepts and
// what it means (sections.h); configs/defaults.yaml is printed from the rows. load.h merges files,
// presets and the command line into one Config.
// Torch-free.
// Thread safety: plain values; copies are independent and concurrent reads are safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "rl/config/enums.h"
#include "rl/losses/policy_loss.h"

namespace ringside::rl {

struct ModelConfig {
  std::string path;
  DeviceKind device = DeviceKind::kAuto;
  DType dtype = DType::kFloat32;
  std::string products = "auto";
  std::string reference_path;
  ModelInit init = ModelInit::kPretrained;
  double init_std = 0.02;
  Recompute recompute = Recompute::kNone;
  bool offload_activations = false;
  bool offload_parameters = false;
  int64_t mlp_tile_tokens = 0;
  int64_t logit_chunk_mb = 512;
  bool fp32_norms = false;
  int64_t max_document_tokens = 0;
  double router_aux_loss_coef = 0.0;
  double router_bias_update_rate = 0.0;
  double mtp_loss_coef = 0.0;
  bool mtp_detach = true;
  VisionPart vision = VisionPart::kFrozen;
};

inline constexpr std::array<std::string_view, 2> kCurriculumModes = {"none", "pools"};
// Prompts by how often they were solved. mode none = each prompt once a pass.
struct CurriculumConfig {
  std::string mode = "none";
  double easy_above = 0.9;
  double hard_below = 0.1;
  double easy_share = 0.1;
  double hard_share = 0.2;
};

struct DataConfig {
  std::string train;
  std::string eval;
  std::string sft;
  std::string sft_eval;
  std::string preferences;
  std::string preferences_eval;
  std::string chosen_key = "chosen";
  std::string rejected_key = "rejected";
  int64_t max_length = 0;
  std::string prompt_key = "prompt";
  std::string answer_key = "answer";
  std::string answer_after;
  std::string source_key = "data_source";
  std::string adapter_key = "adapter";
  std::string image_key;
  int64_t max_image_pixels = 0;
  std::string completion_key = "completion";
  std::string messages_key = "messages";
  ChatTemplate chat_template = ChatTemplate::kNone;
  std::string template_options;
  TextPrompts text_prompts = TextPrompts::kRaw;
  std::string system_prompt;
  std::string prompt_suffix;
  AddSpecialTokens add_special_tokens = AddSpecialTokens::kAuto;
  OnOverlong on_overlong = OnOverlong::kError;
  bool shuffle = true;
  CurriculumConfig curriculum;
};

// Options of the rewards that rollout.reward names.
struct RewardOptionsConfig {
  double tolerance = 1e-6;
  std::string regex;
  std::string json_schema;
  int64_t repetition_ngram = 20;
  std::string code_command = "python3";
  double code_timeout_s = 5.0;
  int64_t code_memory_mb = 1024;
  std::string http_url;
  double http_timeout_s = 30.0;
  std::string judge_url;
  std::string judge_model;
  std::string judge_rubric;
  std::string judge_api_key_file;
  int64_t judge_concurrency = 16;
  double judge_timeout_s = 60.0;
  std::string python_command = "python3";
  int64_t python_processes = 1;
  double python_timeout_s = 60.0;
};

// External inference server (rollout.server other than embedded).
struct ServerConfig {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key_file;
  std::string model;
  int64_t concurrency = 64;
  ServerWeights weights = ServerWeights::kAuto;
  std::string weights_directory;
  ServerPause pause = ServerPause::kDrain;
  double request_timeout_s = 600.0;
  double load_timeout_s = 600.0;
  std::string start_command;
  int64_t probe_tokens = 16;
  double probe_tolerance = 0.05;
};
// Used with a harness.
struct HarnessConfig {
  std::string address = "127.0.0.1:0";
  int64_t concurrency = 64;
  int64_t max_turns = 64;
  double session_timeout_s = 600.0;
  std::string python_command = "python3";
  std::string parser = "auto";
};

struct RolloutConfig {
  int64_t prompts_per_step = 8;
  int64_t group_size = 8;
  int64_t max_prompt_tokens = 512;
  int64_t max_completion_tokens = 512;
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  std::string stop;
  std::string reward = "exact_match";
  std::string reward_separator;
  RewardOptionsConfig reward_options;
  RolloutServer server = RolloutServer::kEmbedded;
  ServerConfig server_options;
  std::string harness;
  HarnessConfig harness_options;
  std::string environment;
  std::string environment_options;
  int64_t num_workers = 1;
  int64_t worker_threads = 1;
  int64_t cache_mb = 0;
  bool partial_rollout = false;
  int64_t max_steps_without_score = 3;
  double straggler_timeout_s = 0.0;
  int64_t min_group_size = 2;
};

struct AdvantageConfig {
  AdvantageEstimator estimator = AdvantageEstimator::kGroupMean;
  AdvantageStd std = AdvantageStd::kGroup;
  double eps = 1e-4;
  bool unbiased = true;
  Whiten whiten = Whiten::kNone;
  double whiten_eps = 1e-8;
  WhitenEpsIn whiten_eps_in = WhitenEpsIn::kVariance;
  double gamma = 1.0;
  double lambda = 1.0;
  bool gpg_scale = false;
};

struct CorrectionConfig {
  CorrectionMode mode = CorrectionMode::kNone;
  CorrectionLevel level = CorrectionLevel::kToken;
  double low = 0.0;
  double high = 2.0;
  double token_high = 0.0;
  double opsm_delta = 0.0;
  std::string reject{};  // as checked_rejections() returns it
  bool drop_rejected = false;
  bool normalize = false;
  std::string ratio_of = "old";
};

// Shaping of a sample's total reward before the advantages.
struct RewardShapingConfig {
  double scale = 1.0;
  double clip = 0.0;
  int64_t overlong_buffer_tokens = 0;
  double overlong_factor = 1.0;
};

struct CriticConfig {
  std::string model_path;
  double learning_rate = 1e-5;
  double value_clip = 0.5;
  int64_t warmup_steps = 0;
  double max_grad_norm = 1.0;
  int64_t num_iterations = 0;
  int64_t num_mini_batches = 0;
};

// A teacher that the policy is distilled from. teacher empty = none.
struct DistillationConfig {
  std::string teacher;
  std::string teachers;
  std::string server_model;
  std::string server_api_key_file;
  int64_t server_concurrency = 16;
  double server_timeout_s = 600.0;
  double coef = 1.0;
  DistillationOver over = DistillationOver::kSampledToken;
  DistillationDivergence divergence = DistillationDivergence::kReverseKl;
  int64_t top_k = 64;
  double mixture = 0.5;
};

// algorithm.task: dpo and reward_model.
struct PreferenceConfig {
  PreferenceLoss loss = PreferenceLoss::kSigmoid;
  double beta = 0.1;
  double label_smoothing = 0.0;
  double sft_coef = 0.0;
  double center_coef = 0.0;
};

inline constexpr std::array<std::string_view, 4> kResamplingMethods = {"none", "pow", "max_min",
                                                                       "max_random"};
// Samples of a step drawn anew by their rewards (PF-PPO). method none = all are used once.
struct ResamplingConfig {
  std::string method = "none";
  double power = 2.0;
};

struct AlgorithmConfig {
  Task task = Task::kRl;
  std::string preset = "none";
  double kl_coef = 0.0;
  KlEstimator kl_estimator = KlEstimator::kK3;
  KlIn kl_in = KlIn::kLoss;
  KlTo kl_to = KlTo::kReference;
  double kl_bound = 0.0;
  double k3_bound = 0.0;
  double kl_target = 0.0;
  int64_t kl_horizon = 10000;
  KlAverage kl_average = KlAverage::kTokens;
  int64_t reference_update_every = 0;
  double reference_mixup = 1.0;
  double entropy_coef = 0.0;
  EntropyAggregation entropy_aggregation = EntropyAggregation::kTokens;
  double entropy_target = 0.0;
  double entropy_step = 0.0;
  std::string loss = "ppo_clip";  // one of policy_losses()
  ImportanceLevel importance_level = ImportanceLevel::kToken;
  double clip_low = 0.2;
  double clip_high = 0.2;
  LossValues loss_keys;  // algorithm.ppo_clip.dual_clip and so on
  LossAggregation loss_aggregation = LossAggregation::kTokenMean;
  double loss_divisor = 0.0;
  RewardShapingConfig reward;
  AdvantageConfig advantage;
  CriticConfig critic;
  OldLogprobs old_logprobs = OldLogprobs::kRecompute;
  std::string logprobs_over = "vocabulary";
  RouterReplay router_replay = RouterReplay::kNone;
  CorrectionConfig correction;
  DistillationConfig distillation;
  PreferenceConfig preference;
  ResamplingConfig resampling;
  DynamicSampling dynamic_sampling = DynamicSampling::kNone;
  std::string dynamic_sampling_by = "total";
  int64_t dynamic_sampling_rounds = 10;
  int64_t num_iterations = 1;
  int64_t max_staleness = 0;
  bool mask_truncated = false;
};

// What a loss, the configuration's or another one, reads. Valid as long as `config`.
inline LossOptions loss_options(const AlgorithmConfig& config, const PolicyLoss& loss) {
  return {config.clip_low, config.clip_high, loss.block(), config.loss_keys};
}
inline LossOptions loss_options(const AlgorithmConfig& config) {
  return loss_options(config, policy_loss(config.loss));
}

// Low-rank adapters. rank 0 = all weights are trained.
struct LoraConfig {
  int64_t rank = 0;
  double alpha = 32.0;
  std::string target_modules = "all-linear";
  std::string adapters;
  std::string path;
  LoraBase base = LoraBase::kModel;
  LoraPublish publish = LoraPublish::kMerged;
};

// Matrices' optimizer with optimizer.kind muon.
struct MuonConfig {
  double momentum = 0.95;
  bool nesterov = true;
  int64_t newton_schulz_steps = 5;
  MuonScale scale = MuonScale::kMatchAdamW;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-6;
  LrDecay lr_schedule = LrDecay::kConstant;
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  WeightDecayOf weight_decay_of = WeightDecayOf::kMatrices;
  double max_grad_norm = 1.0;
  OptimizerOffload offload = OptimizerOffload::kNone;
  MuonConfig muon;
};

struct TrainConfig {
  int64_t steps = 100;
  int64_t epochs = 0;
  int64_t tokens_per_micro_batch = 16384;
  int64_t num_mini_batches = 1;
  bool shuffle_mini_batches = false;
  int64_t batch_size = 32;
  int64_t threads = 0;
};

struct ParallelConfig {
  // 0 = what the world leaves; set when the world is known.
  int64_t data_parallel_replicate_size = 0;
  int64_t data_parallel_shard_size = 1;
  int64_t ringattn_parallel_size = 1;
  int64_t ulysses_parallel_size = 1;
  int64_t context_parallel_size = 0;
  int64_t expert_parallel_size = 1;
  int64_t pipeline_parallel_size = 1;
  PipelineChoice pipeline_schedule = PipelineChoice::kAuto;
  int64_t stages_per_rank = 1;
  int64_t tensor_parallel_size = 1;
  CpFsdpMode cp_fsdp_mode = CpFsdpMode::kAll;
  int64_t zero_stage = 3;
  DType reduce_dtype = DType::kFloat32;
  sp::GroupScope group_scope = sp::GroupScope::kLocalNode;
  sp::RankTransport transport = sp::RankTransport::kAuto;
  double collective_timeout_s = 600.0;

  // Number of ranks that share a sequence, before or after context_parallel_size is factored.
  int64_t sequence_parallel_size() const {
    return context_parallel_size > 0 ? context_parallel_size
                                     : ringattn_parallel_size * ulysses_parallel_size;
  }
  // Number of ranks of one replica of a stage, and of one replica of the model.
  int64_t replica_size() const {
    return data_parallel_shard_size * sequence_parallel_size() * tensor_parallel_size;
  }
  int64_t model_size() const { return pipeline_parallel_size * replica_size(); }
  // Number of ranks of the mesh; of one replica while the number of replicas is open.
  int64_t world_size() const {
    return std::max<int64_t>(1, data_parallel_replicate_size) * model_size();
  }
};

struct SpConfig {
  SpMethod method = SpMethod::kAuto;
  sp::RingImpl ring_impl = sp::RingImpl::kP2p;
  sp::RingImpl ring_backward = sp::RingImpl::kP2p;
  AsyncUlysses async_ulysses = AsyncUlysses::kFalse;
  bool shared_prefix = true;
  sp::Placement placement = sp::Placement::kDocumentAware;
  int64_t heads_k_stride = 0;
  int64_t virtual_ranks = 0;
  std::string device_speeds;
};

// CURVE key files; empty = no encryption, for a single machine.
struct CurveConfig {
  std::string trainer_secret;
  std::string allowed_workers;
  std::string worker_secret;
  std::string trainer_public;
};

struct BridgeConfig {
  std::string rollout_address = "tcp://127.0.0.1:0";
  std::string weights_address = "tcp://127.0.0.1:0";
  double heartbeat_s = 1.0;
  double worker_timeout_s = 10.0;
  double pause_timeout_s = 3600.0;
  double assignment_timeout_s = 600.0;
  int64_t max_queued_mb = 4096;
  bridge::FsyncPolicy journal_fsync = bridge::FsyncPolicy::kInterval;
  int64_t journal_max_mb = 16384;
  CurveConfig curve;
};

struct WeightsConfig {
  std::optional<DType> publish_dtype;  // none: model.dtype
  WeightEncoding encoding = WeightEncoding::kAuto;
  int64_t full_every = 16;
  bool shared_memory = true;
  std::string directory;
  int64_t keep = 2;
};

struct CheckpointConfig {
  int64_t every = 0;
  double every_minutes = 10.0;
  int64_t keep = 2;
  bool keep_best = false;
  std::string best_metric;
};

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  ProgressStyle progress = ProgressStyle::kAuto;
  bool rollouts = false;
  int64_t samples = 2;
  bool samples_after = false;
  std::string openmetrics;
};

struct EvalConfig {
  std::string sets;  // as absolute_eval_sets() returns it
  int64_t every = 0;
  bool before_training = true;
  int64_t max_prompts = 0;
  int64_t samples = 1;
  double temperature = 0.0;
  EvalBy by = EvalBy::kEmbedded;
  double timeout_s = 1800.0;
};

struct Config {
  int64_t seed = 1;
  ModelConfig model;
  DataConfig data;
  RolloutConfig rollout;
  AlgorithmConfig algorithm;
  OptimizerConfig optimizer;
  LoraConfig lora;
  TrainConfig train;
  ParallelConfig parallel;
  SpConfig sp;
  BridgeConfig bridge;
  WeightsConfig weights;
  CheckpointConfig checkpoint;
  LogConfig log;
  EvalConfig eval;
};

}  // namespace ringside::rl
