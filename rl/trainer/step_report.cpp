#include "rl/trainer/step_report.h"

#include <string>
#include <utility>

#include "rl/report/log.h"
#include "rl/trainer/run_directory.h"
#include "rl/trainer/step_metrics.h"

namespace ringside::rl {
namespace {

std::optional<double> find(const Metrics& metrics, const std::string& name) {
  for (const auto& [key, value] : metrics) {
    if (key == name) {
      return value;
    }
  }
  return std::nullopt;
}

// Says from where the run goes on, and puts away the metrics of an earlier run that left no
// checkpoint. Returns the last step of the metrics that were there.
int64_t continue_metrics(const std::filesystem::path& run_dir, const std::filesystem::path& from,
                         int64_t step) {
  const int64_t last = last_metrics_step(run_dir / "metrics.jsonl");
  if (!from.empty()) {
    log::info("going on from " + from.string() + ", step " + std::to_string(step) +
              (last > step ? "; steps " + std::to_string(step + 1) + " to " + std::to_string(last) +
                                 " of the earlier try are trained again"
                           : ""));
  } else if (const auto earlier = set_earlier_try_aside(run_dir)) {
    log::warn("no checkpoint in " + run_dir.string() + ": starting from step 1; the " +
              std::to_string(earlier->steps) +
              " steps of an earlier try are dropped, their metrics are kept in " +
              earlier->kept.string());
  }
  return last;
}

ProgressOutput progress_output(ProgressStyle style) {
  const bool bar = style == ProgressStyle::kBar ||
                   (style == ProgressStyle::kAuto && detect_terminal().is_terminal);
  return {log::line, bar ? log::set_status : std::function<void(const std::string&)>(),
          detect_terminal};
}

}  // namespace

StepReport::StepReport(const Config& config, const std::filesystem::path& run_dir, int64_t steps,
                       const std::filesystem::path& from, int64_t step)
    : StepReport(config, run_dir, steps, step, continue_metrics(run_dir, from, step)) {}

StepReport::StepReport(const Config& config, const std::filesystem::path& run_dir, int64_t steps,
                       int64_t step, int64_t last)
    : shows_reward_(config.algorithm.name == AlgorithmName::kGrpo),
      metrics_(run_dir / "metrics.jsonl", step),
      tensorboard_(run_dir / "tensorboard", last > 0 ? step + 1 : -1),
      progress_(steps, progress_output(config.log.progress)) {}

void StepReport::write(const TrainingState& state, Metrics metrics,
                       const std::vector<UpdateResult>& updates) {
  const auto now = std::chrono::steady_clock::now();
  const double step_time =
      std::chrono::duration<double>(now - std::exchange(step_begin_, now)).count();
  for (auto& metric : sequence_metrics(updates)) {
    metrics.push_back(std::move(metric));
  }
  metrics.emplace_back("step_time", step_time);
  metrics.emplace_back("weight_version", static_cast<double>(state.weight_version));
  std::vector<Metrics> per_update;
  for (const UpdateResult& update : updates) {
    per_update.push_back(update_metrics({update}));
  }
  metrics_.write(state.step, metrics, per_update);
  tensorboard_.write(state.step, metrics);
  show_progress(state.step, metrics, step_time);
}

void StepReport::show_progress(int64_t step, const Metrics& metrics, double step_time) {
  ProgressUpdate update;
  update.step = step;
  if (shows_reward_) {
    update.reward = find(metrics, "reward");
  }
  update.loss = find(metrics, "loss").value_or(0.0);
  if (const auto evaluated = evaluation_of(metrics)) {
    evaluation_ = evaluated->value;
  }
  update.evaluation = evaluation_;
  update.tokens_per_s = find(metrics, "num_tokens").value_or(0.0) / step_time;
  update.step_s = step_time;
  progress_.update(update);
}

void StepReport::write_first_evaluation(const std::string& metric, double value) {
  evaluation_ = value;
  log::info("evaluation before training: " + metric.substr(metric.find('_') + 1) + " " +
            std::to_string(value));
  tensorboard_.write(0, {{metric, value}});
}

}  // namespace ringside::rl
