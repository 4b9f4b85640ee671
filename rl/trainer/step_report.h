// Report of a run's finished steps: metrics.jsonl, TensorBoard and the progress line. Rank 0 has
// one.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/report/metrics_writer.h"
#include "rl/report/openmetrics.h"
#include "rl/report/progress.h"
#include "rl/report/tensorboard_writer.h"
#include "rl/step/policy_update.h"
#include "rl/trainer/checkpoint.h"

namespace ringside::rl {

class StepReport {
 public:
  // Opens the files of a run that goes on after `step` from the checkpoint `from`, or begins when
  // that is empty. Metrics of later steps are dropped; those of a run without checkpoint are kept
  // under another name. The log says which. Throws: as MetricsWriter, TensorboardWriter and
  // OpenMetricsServer.
  StepReport(const Config& config, const std::filesystem::path& run_dir, int64_t steps,
             const std::filesystem::path& from, int64_t step);
  ~StepReport() = default;
  StepReport(const StepReport&) = delete;
  StepReport& operator=(const StepReport&) = delete;

  // One finished step. `metrics` must hold "num_tokens" and "step_time", and "reward" if there is
  // one.
  // Throws: as MetricsWriter::write and TensorboardWriter::write.
  void write(const TrainingState& state, Metrics metrics, const std::vector<UpdateResult>& updates);
  // The evaluation before the first step, as step 0 of the metrics.
  // Throws: as write().
  void write_first_evaluation(const Metrics& metrics);
  // Ends the progress line.
  void finish() { progress_.finish(); }

 private:
  // `last`: the last step of the metrics that are there.
  StepReport(const Config& config, const std::filesystem::path& run_dir, int64_t steps,
             int64_t step, int64_t last);

  MetricsWriter metrics_;
  TensorboardWriter tensorboard_;
  Progress progress_;
  std::optional<OpenMetricsServer> exposed_;  // with log.openmetrics
  std::string best_metric_;
  std::optional<double> evaluation_;  // the last one by best_metric_
};

}  // namespace ringside::rl
