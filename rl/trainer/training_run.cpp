#include "rl/trainer/training_run.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <string.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <span>
#include <stdexcept>

#include "engine/io/hf_directory.h"
#include "engine/optim/lr_schedule.h"
#include "rl/report/log.h"
#include "rl/setup/optimizer_options.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/trainer/rank_work.h"
#include "rl/trainer/step_metrics.h"
#include "rollout_bridge/base/posix_file.h"
#include "sp/mesh/control.h"

namespace ringside::rl {
namespace {

// Number of optimizer steps in one step of the algorithm.
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

// The run's id: drawn at the first start and stored in RUN_DIR/run_id. A start that finds no
// checkpoint yet must still recognise the journal of the previous start as its own. Written by
// rename, so that a crash leaves no id or a complete one.
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

std::optional<double> find(const Metrics& metrics, const std::string& name) {
  for (const auto& [key, value] : metrics) {
    if (key == name) {
      return value;
    }
  }
  return std::nullopt;
}

}  // namespace

TrainingRun::TrainingRun(RunOptions options, const sp::Mesh& mesh, sp::ProcessGroups comms)
    : options_(std::move(options)), mesh_(mesh), comms_(std::move(comms)) {
  if (is_main_rank()) {
    lock_.emplace(run_dir());
  }
  auto decoder = load_starting_model(config(), config().model.path, comms_.device());
  decoder->set_recompute_activations(config().model.recompute_activations);
  policy_ = std::make_unique<engine::ModelRunner>(
      std::make_unique<engine::LanguageModel>(std::move(decoder)), comms_,
      adamw_options(config().optimizer));
  resume_or_start();
  if (const std::string name = engine::first_non_finite(policy_->model().units()); !name.empty()) {
    throw std::runtime_error(
        (saved_.empty() ? "model.path " + config().model.path : saved_.string()) + ": weights of " +
        name + " are not finite");
  }
  if (is_main_rank()) {
    open_writers();
  }
  step_begin_ = saved_at_ = std::chrono::steady_clock::now();
}

void TrainingRun::resume_or_start() {
  const auto checkpoint = latest_checkpoint(run_dir());
  if (checkpoint) {
    state_ = load_checkpoint(*checkpoint, *policy_);
    resumed_parts_ = *checkpoint / "trainer";
    saved_ = *checkpoint;
    saved_step_ = state_.step;
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
  const int64_t last = last_metrics_step(run_dir() / "metrics.jsonl");
  if (!saved_.empty()) {
    log::info("going on from " + saved_.string() + ", step " + std::to_string(state_.step) +
              (last > state_.step
                   ? "; steps " + std::to_string(state_.step + 1) + " to " + std::to_string(last) +
                         " of the earlier try are trained again"
                   : ""));
  } else if (const auto earlier = set_earlier_try_aside(run_dir())) {
    log::warn("no checkpoint in " + run_dir().string() + ": starting from step 1; the " +
              std::to_string(earlier->steps) +
              " steps of an earlier try are dropped, their metrics are kept in " +
              earlier->kept.string());
  }
  metrics_ = std::make_unique<MetricsWriter>(run_dir() / "metrics.jsonl", state_.step);
  tensorboard_ = std::make_unique<TensorboardWriter>(run_dir() / "tensorboard",
                                                     last > 0 ? state_.step + 1 : -1);
  const ProgressStyle style = config().log.progress;
  const bool bar = style == ProgressStyle::kBar ||
                   (style == ProgressStyle::kAuto && detect_terminal().is_terminal);
  progress_ = std::make_unique<Progress>(
      options_.steps,
      ProgressOutput{log::line, bar ? log::set_status : std::function<void(const std::string&)>(),
                     detect_terminal});
}

void TrainingRun::on_every_rank(const std::function<void()>& work) const {
  run_rank_work(*comms_.control(sp::axes::kLoss), waiting_round(config()), work);
}

void TrainingRun::on_main_rank(const std::function<void()>& work) const {
  on_every_rank(is_main_rank() ? work : std::function<void()>());
}

std::vector<sp::MicroBatch> TrainingRun::collate(const std::vector<sp::Document>& documents) const {
  const auto& model = decoder().config();
  const int64_t budget = config().train.tokens_per_micro_batch;
  const auto packing = sp::plan_micro_batches(documents, mesh_.shape().dp_replicate, budget,
                                              config().sp.shared_prefix);
  sp::check_agreement(packing.hash(), "the micro-batch plan", *comms_.control(sp::axes::kLoss));
  return sp::collate(documents, packing, mesh_,
                     {{model.num_attention_heads, model.num_key_value_heads, model.head_dim},
                      budget,
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

UpdateResult TrainingRun::update(const LocalBatch& mini_batch, const StepColumns& columns,
                                 const LossFunction& loss) {
  const auto inputs = training_inputs(mini_batch, columns, column_dtype(decoder().compute_dtype()));
  const StepSize size{config().optimizer.learning_rate * learning_rate_factor(),
                      config().optimizer.max_grad_norm};
  try {
    const UpdateResult result =
        update_policy(*policy_, inputs, loss, size, *comms_.control(sp::axes::kLoss));
    if (!std::isfinite(result.sums.loss)) {
      throw engine::Diverged("the loss is " + std::to_string(result.sums.loss));
    }
    ++state_.optimizer_step;
    return result;
  } catch (const engine::Diverged& error) {
    diverged(error);
  }
}

void TrainingRun::diverged(const engine::Diverged& error) const {
  throw TrainingFailed("step " + std::to_string(state_.step + 1) + ": " + error.what() +
                       (saved_.empty() ? "; there is no checkpoint yet"
                                       : "; the newest checkpoint is " + saved_.string()) +
                       ". Training has diverged: expected a lower optimizer.learning_rate or "
                       "optimizer.max_grad_norm");
}

bool TrainingRun::finish_step(Metrics metrics, const std::vector<UpdateResult>& updates) {
  ++state_.step;
  ++state_.weight_version;
  if (is_main_rank()) {
    write_step(std::move(metrics), updates);
  }
  if (!agree_on_step_end()) {
    return false;
  }
  save_step();
  return true;
}

void TrainingRun::write_step(Metrics metrics, const std::vector<UpdateResult>& updates) {
  const auto now = std::chrono::steady_clock::now();
  const double step_time =
      std::chrono::duration<double>(now - std::exchange(step_begin_, now)).count();
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
}

// Clocks and signals differ between ranks, but all ranks must act alike. Returns whether a
// checkpoint is due.
bool TrainingRun::agree_on_step_end() {
  const CheckpointConfig& checkpoint = config().checkpoint;
  const std::chrono::duration<double, std::ratio<60>> since_saved =
      std::chrono::steady_clock::now() - saved_at_;
  const bool by_steps = checkpoint.every > 0 && state_.step % checkpoint.every == 0;
  const bool by_time = is_main_rank() && checkpoint.every_minutes > 0 &&
                       since_saved.count() >= checkpoint.every_minutes;
  at::Tensor word = at::tensor({int64_t{signal_here()}, int64_t{by_steps || by_time}}, at::kLong);
  comms_.control(sp::axes::kLoss)->all_reduce_max(word, "step end");
  agree_to_stop(word[0].item<int>());
  return word[1].item<int64_t>() != 0;
}

void TrainingRun::show_progress(const Metrics& metrics, double step_time) {
  ProgressUpdate update;
  update.step = state_.step;
  if (config().algorithm.name == AlgorithmName::kGrpo) {
    update.reward = find(metrics, "reward");
  }
  update.loss = find(metrics, "loss").value_or(0.0);
  if (const auto evaluated = find(metrics, "eval_reward")) {
    eval_reward_ = evaluated;
  }
  update.eval_reward = eval_reward_;
  update.tokens_per_s = find(metrics, "num_tokens").value_or(0.0) / step_time;
  update.step_s = step_time;
  progress_->update(update);
}

void TrainingRun::show_first_evaluation(double reward) {
  eval_reward_ = reward;
  log::info("evaluation before training: reward " + std::to_string(reward));
  tensorboard_->write(0, {{"eval_reward", reward}});
}

void TrainingRun::save(const std::filesystem::path& dir) {
  on_main_rank([&] {
    save_checkpoint(dir, *policy_, state_, config().model.path, checkpoint_parts_);
    prune_checkpoints(run_dir(), config().checkpoint.keep);
  });
  saved_ = dir;
  saved_step_ = state_.step;
  saved_at_ = std::chrono::steady_clock::now();
}

void TrainingRun::save_step() { save(checkpoint_path(run_dir(), state_.step)); }

void TrainingRun::finish() {
  if (is_main_rank()) {
    progress_->finish();
  }
  const int signal = stop_signal();
  if (signal == 0) {
    save(run_dir() / "checkpoint-final");
  } else if (state_.step > saved_step_) {
    save_step();
  }
  if (!is_main_rank()) {
    return;
  }
  const std::string steps = std::to_string(state_.step);
  if (signal == 0) {
    log::info("finished: " + steps + " steps, " + saved_.string());
  } else {
    log::warn(std::string("stopped by SIG") + sigabbrev_np(signal) + " after step " + steps + "; " +
              (saved_.empty() ? "nothing was trained yet"
                              : "the same command goes on from " + saved_.string()));
  }
}

}  // namespace ringside::rl
