#include "rl/training_run.h"

#include <ATen/ATen.h>
#include <fcntl.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <span>
#include <stdexcept>

#include "engine/optim/lr_schedule.h"
#include "engine/weights/hf_directory.h"
#include "rl/log/log.h"
#include "rl/optimizer_step.h"
#include "rl/sequence_parallel.h"
#include "rl/step_metrics.h"
#include "rollout_bridge/posix_file.h"
#include "sp/grad_sync.h"

namespace ringside::rl {
namespace {

// Optimizer steps that one step of the algorithm takes.
int64_t updates_per_step(const Config& config) {
  const int64_t iterations =
      config.algorithm.name == AlgorithmName::kGrpo ? config.algorithm.num_iterations : 1;
  return iterations * config.train.num_mini_batches;
}

engine::LrDecay lr_decay(LrSchedule schedule) {
  switch (schedule) {
    case LrSchedule::kConstant:
      return engine::LrDecay::kConstant;
    case LrSchedule::kLinear:
      return engine::LrDecay::kLinear;
    case LrSchedule::kCosine:
      return engine::LrDecay::kCosine;
  }
  throw std::invalid_argument("unknown lr_schedule");
}

std::string new_run_id() {
  std::random_device entropy;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", entropy(), entropy());
  return text;
}

// Drawn at a run's first start and kept in RUN_DIR/run_id: a start that finds no checkpoint yet must still know the journal
// of the one before as its own. Renamed into place, so that a crash leaves no id or a whole one.
std::string kept_run_id(const std::filesystem::path& run_dir) {
  const auto path = run_dir / "run_id";
  std::string id;
  if (std::ifstream file(path); file) {
    if (!std::getline(file, id) || id.empty()) {
      throw std::runtime_error(path.string() + ": expected the id of the run and a newline");
    }
    return id;
  }
  id = new_run_id();
  std::filesystem::create_directories(run_dir);
  const auto fresh = run_dir / "run_id.new";
  {
    bridge::PosixFile file(fresh, O_WRONLY | O_CREAT | O_TRUNC);
    const std::string text = id + "\n";
    file.append(std::as_bytes(std::span(text)));
    file.sync();
  }
  std::filesystem::rename(fresh, path);
  bridge::sync_directory(run_dir);
  return id;
}

double find(const Metrics& metrics, const std::string& name, double otherwise) {
  for (const auto& [key, value] : metrics) {
    if (key == name) {
      return value;
    }
  }
  return otherwise;
}

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat64:
      return at::kDouble;
  }
  throw std::invalid_argument("unknown dtype");
}

engine::ModelConfig load_model_config(const Config& config, const std::string& path) {
  engine::ModelConfig model = engine::load_model_config(path);
  model.fp32_norms = config.model.fp32_norms;
  return model;
}

std::unique_ptr<engine::Decoder> load_starting_model(const Config& config, const std::string& path) {
  const auto dtype = scalar_type(config.model.dtype);
  auto decoder = std::make_unique<engine::Decoder>(load_model_config(config, path), dtype);
  if (config.model.init == ModelInit::kRandom) {
    decoder->init_random(static_cast<uint64_t>(config.seed), config.model.init_std);
  } else {
    engine::load_weights(path, *decoder);
  }
  return decoder;
}

TrainingRun::TrainingRun(RunOptions options, const sp::Mesh& mesh, sp::MeshCommunicators comms)
    : options_(std::move(options)), mesh_(mesh), comms_(std::move(comms)) {
  decoder_ = load_starting_model(config(), config().model.path);
  decoder_->set_recompute_activations(config().model.recompute_activations);
  optimizer_ = std::make_unique<engine::AdamW>(decoder_->units(), adamw_options(config().optimizer));
  resume_or_start();
  if (is_main_rank()) {
    open_writers();
  }
  step_begin_ = std::chrono::steady_clock::now();
}

void TrainingRun::resume_or_start() {
  const auto checkpoint = latest_checkpoint(run_dir());
  if (checkpoint) {
    state_ = load_checkpoint(*checkpoint, *decoder_, *optimizer_);
    resumed_parts_ = *checkpoint / "trainer";
    if (is_main_rank()) {
      log::info("going on from " + checkpoint->string() + ", step " + std::to_string(state_.step));
    }
  } else {
    state_.seed = config().seed;
    state_.run_id = is_main_rank() ? kept_run_id(run_dir()) : "";
  }
  const AlgorithmConfig& algorithm = config().algorithm;
  if (!checkpoint || algorithm.kl_target == 0.0) {
    state_.kl_coef = algorithm.kl_coef;
  }
  if (!checkpoint || algorithm.entropy_target == 0.0) {
    state_.entropy_coef = algorithm.entropy_coef;
  }
}

void TrainingRun::open_writers() {
  metrics_ = std::make_unique<MetricsWriter>(run_dir() / "metrics.jsonl", state_.step);
  tensorboard_ = std::make_unique<TensorboardWriter>(run_dir() / "tensorboard",
                                                     state_.step > 0 ? state_.step + 1 : -1);
  const TerminalTraits terminal = detect_terminal();
  const ProgressStyle style = config().log.progress;
  const bool bar = style == ProgressStyle::kBar || (style == ProgressStyle::kAuto && terminal.is_terminal);
  progress_ = std::make_unique<Progress>(options_.steps, bar, terminal, [](const std::string& bytes) {
    std::fwrite(bytes.data(), 1, bytes.size(), stderr);
    std::fflush(stderr);
  });
}

std::vector<sp::Shard> TrainingRun::collate(const std::vector<sp::Document>& documents) const {
  const auto& model = decoder_->config();
  const int64_t budget = config().train.tokens_per_micro_batch;
  const auto plan = sp::plan_micro_batches(documents, mesh_.shape().dp_replicate, budget, config().sp.shared_prefix);
  sp::check_agreement(plan.hash(), "the micro-batch plan", *comms_.world);
  const bool fp64 = decoder_->compute_dtype() == at::kDouble;
  return sp::collate(documents, mesh_,
                     {{model.num_attention_heads, model.num_key_value_heads, model.head_dim},
                      budget,
                      fp64 ? at::kDouble : at::kFloat,
                      sequence_options(config().sp)});
}

double TrainingRun::learning_rate_factor() const {
  const OptimizerConfig& optimizer = config().optimizer;
  engine::LrSchedule schedule;
  schedule.decay = lr_decay(optimizer.lr_schedule);
  schedule.peak = 1.0;
  schedule.warmup_steps = optimizer.warmup_steps;
  schedule.min_lr_ratio = optimizer.min_lr_ratio;
  schedule.total_steps = config().train.steps * updates_per_step(config());
  return schedule.at_step(state_.optimizer_step);
}

UpdateResult TrainingRun::update(const std::vector<sp::Shard>& shards, const LossFunction& loss) {
  const UpdateResult result = update_policy(*decoder_, *optimizer_, shards, loss,
                                            config().optimizer.learning_rate * learning_rate_factor(),
                                            config().optimizer.max_grad_norm, comms_);
  ++state_.optimizer_step;
  return result;
}

bool TrainingRun::finish_step(Metrics metrics, const std::vector<UpdateResult>& updates) {
  ++state_.step;
  ++state_.weight_version;
  if (!is_main_rank()) {
    return false;
  }
  const auto now = std::chrono::steady_clock::now();
  const double step_time = std::chrono::duration<double>(now - std::exchange(step_begin_, now)).count();
  for (auto& metric : sequence_metrics(updates)) {
    metrics.push_back(std::move(metric));
  }
  metrics.emplace_back("step_time", step_time);
  metrics.emplace_back("weight_version", static_cast<double>(state_.weight_version));
  std::vector<Metrics> per_update;
  for (const UpdateResult& update : updates) {
    per_update.push_back(update_metrics({update}));
  }
  metrics_->write(state_.step, metrics, per_update);
  tensorboard_->write(state_.step, metrics);
  show_progress(metrics, step_time);
  const int64_t every = config().checkpoint.every;
  if (every == 0 || state_.step % every != 0) {
    return false;
  }
  save(checkpoint_path(run_dir(), state_.step));
  prune_checkpoints(run_dir(), config().checkpoint.keep);
  return true;
}

void TrainingRun::show_progress(const Metrics& metrics, double step_time) {
  ProgressUpdate update;
  update.step = state_.step;
  if (config().algorithm.name == AlgorithmName::kGrpo) {
    update.reward = find(metrics, "reward", 0.0);
  }
  update.loss = find(metrics, "loss", 0.0);
  update.tokens_per_s = find(metrics, "num_tokens", 0.0) / step_time;
  update.step_s = step_time;
  progress_->update(update);
}

void TrainingRun::clear_progress() {
  if (progress_) {
    progress_->clear();
  }
}

void TrainingRun::save(const std::filesystem::path& dir) const {
  save_checkpoint(dir, *decoder_, *optimizer_, state_, config().model.path, checkpoint_parts_);
}

void TrainingRun::finish() {
  if (is_main_rank()) {
    progress_->finish();
    save(run_dir() / "checkpoint-final");
  }
}

}  // namespace ringside::rl
