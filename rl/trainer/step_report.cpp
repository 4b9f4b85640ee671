#include "rl/trainer/step_report.h"

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "rl/config/eval_sets.h"
#include "rl/report/log.h"
#include "rl/trainer/run_directory.h"
#include "rl/trainer/step_metrics.h"

namespace ringside::rl {
namespace {

// Says from where the run goes on, and puts away the metrics of an earlier run that left no
// checkpoint. Returns the last step of the metrics that were there.
int64_t continue_metrics(const std::filesystem::path& run_dir, const std::filesystem::path& from,
                         int64_t step) {
  const int64_t last = last_metrics_step(run_dir / "metrics.jsonl");
  if (!from.empty()) {
    log::info("resuming from " + from.string() + " at step " + std::to_string(step) +
              (last > step
                   ? "; repeating steps " + std::to_string(step + 1) + " to " + std::to_string(last)
                   : ""));
  } else if (const auto earlier = set_earlier_try_aside(run_dir)) {
    log::warn("no checkpoint in " + run_dir.string() + ": starting from step 1; the " +
              std::to_string(earlier->steps) +
              " steps of an earlier try are dropped, their metrics, samples and TensorBoard files "
              "are kept: " +
              earlier->kept.string());
  }
  return last;
}

constexpr std::chrono::milliseconds kRedraw{1000};  // of the screen while a step runs

// "reward 0.5, pass@1 0.5, length 7" of a step's evaluation metrics.
std::string eval_text(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    if (name.starts_with("eval_") || name.starts_with("eval/")) {
      char number[32];
      std::snprintf(number, sizeof number, " %.4g", value);
      text += (text.empty() ? "" : ", ") + name.substr(5) + number;
    }
  }
  return text;
}

ProgressOutput progress_output(ProgressStyle style) {
  const bool bar = style == ProgressStyle::kBar ||
                   (style == ProgressStyle::kAuto && detect_terminal().is_terminal);
  return {log::line, bar ? log::set_status : std::function<void(const std::string&)>(),
          detect_terminal, kRedraw};
}

}  // namespace

StepReport::StepReport(const Config& config, const std::filesystem::path& run_dir, int64_t steps,
                       const std::filesystem::path& from, int64_t step)
    : StepReport(config, run_dir, steps, step, continue_metrics(run_dir, from, step)) {}

StepReport::StepReport(const Config& config, const std::filesystem::path& run_dir, int64_t steps,
                       int64_t step, int64_t last)
    : metrics_(run_dir / "metrics.jsonl", step > 0 ? step : -1),
      tensorboard_(run_dir / "tensorboard", last > 0 ? step + 1 : -1),
      progress_(steps, progress_output(config.log.progress)),
      best_metric_(best_metric(config)) {
  if (!config.log.openmetrics.empty()) {
    exposed_.emplace(config.log.openmetrics);
  }
}

void StepReport::write(const TrainingState& state, Metrics metrics,
                       const std::vector<UpdateResult>& updates) {
  for (auto& metric : sequence_metrics(updates)) {
    metrics.push_back(std::move(metric));
  }
  metrics.emplace_back("weight_version", static_cast<double>(state.weight_version));
  std::vector<Metrics> per_update;
  for (const UpdateResult& update : updates) {
    per_update.push_back(update_metrics({update}));
  }
  metrics_.write(state.step, metrics, per_update);
  tensorboard_.write(state.step, metrics);
  if (exposed_) {
    exposed_->set(state.step, metrics);
  }
  if (const auto evaluated = evaluation_of(metrics, best_metric_)) {
    evaluation_ = evaluated->value;
    log::info("evaluation after step " + std::to_string(state.step) + ": " + eval_text(metrics));
  }
  progress_.update({state.step, std::move(metrics), evaluation_});
}

void StepReport::write_first_evaluation(const Metrics& metrics) {
  evaluation_ = find_metric(metrics, best_metric_);
  log::info("evaluation before training: " + eval_text(metrics));
  metrics_.write(0, metrics);
  tensorboard_.write(0, metrics);
}

}  // namespace ringside::rl
