// `ringside top`.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "rl/report/log.h"
#include "rl/report/metrics_reader.h"
#include "rl/report/progress.h"
#include "rl/report/start_record.h"
#include "rl/trainer/checkpoint.h"
#include "rl/trainer/run_directory.h"
#include "tools/commands/commands.h"
#include "tools/commands/stop_signal.h"

namespace ringside::tools {
namespace {

constexpr std::chrono::milliseconds kBetweenReads{500};

struct TopOptions {
  std::filesystem::path run_dir;
  bool once = false;
};

// How many steps the newest start of the run has in all; 0 if that is unknown.
int64_t planned_steps(const std::filesystem::path& run_dir) {
  std::ifstream file(run_dir / "starts.jsonl");
  int64_t steps = 0;
  for (std::string line; std::getline(file, line);) {
    steps = rl::steps_of_start(line).value_or(steps);
  }
  return steps;
}

bool holds_run(const std::filesystem::path& run_dir) {
  const auto has = [&](const char* name) { return std::filesystem::exists(run_dir / name); };
  return has("metrics.jsonl") || has("config.yaml") || has("trainer.pid") ||
         has("checkpoint-final");
}

// The state of a run that no trainer works on.
std::string describe_end(const std::filesystem::path& run_dir, bool has_steps) {
  const auto finished = rl::final_step(run_dir);
  if (finished && *finished >= planned_steps(run_dir)) {
    return "finished: " + std::to_string(*finished) + " steps, " +
           rl::final_directory(run_dir).string();
  }
  return has_steps ? "no trainer works in this directory now"
                   : "no step is done and no trainer works in this directory";
}

// The run directory's progress, drawn as the run itself draws it.
class RunView {
 public:
  explicit RunView(const TopOptions& options)
      : run_dir_(options.run_dir),
        once_(options.once),
        screen_(!options.once && rl::detect_terminal().is_terminal),
        follower_(run_dir_ / "metrics.jsonl") {}

  // Shows what is new since the last call.
  void show() {
    if (!follower_.poll()) {
      return;
    }
    const auto& lines = follower_.lines();
    if (lines.size() < shown_) {  // the run was resumed from a checkpoint
      shown_ = 0;
      evaluation_.reset();
    }
    if (!progress_) {
      progress_.emplace(planned_steps(run_dir_), output());
    }
    // A terminal shows the newest step only, but the ETA is an average over the last ones.
    for (; shown_ < lines.size(); ++shown_) {
      const rl::MetricsLine& line = lines[shown_];
      const auto evaluated =
          std::find_if(line.metrics.begin(), line.metrics.end(),
                       [](const auto& metric) { return rl::is_evaluation(metric.first); });
      if (evaluated != line.metrics.end()) {
        evaluation_ = evaluated->second;
      }
      is_last_ = shown_ + 1 == lines.size();
      if (line.step > 0) {
        progress_->update({line.step, line.metrics, evaluation_});
      }
    }
  }

  bool empty() const { return follower_.lines().empty(); }
  void finish() {
    if (progress_) {
      progress_->finish();
    }
  }

 private:
  rl::ProgressOutput output() {
    rl::ProgressOutput output;
    output.line = once_ ? [](const std::string& text) { std::cout << text << "\n"; }
                        : std::function<void(const std::string&)>(rl::log::line);
    output.terminal = rl::detect_terminal;
    if (screen_) {
      output.status = [this](const std::string& text) {
        if (is_last_ || text.empty()) {
          rl::log::set_status(text);
        }
      };
    }
    return output;
  }

  std::filesystem::path run_dir_;
  bool once_;  // lines go to standard output
  bool screen_;
  rl::MetricsFollower follower_;
  std::size_t shown_ = 0;  // lines
  bool is_last_ = false;   // of the lines read
  std::optional<double> evaluation_;
  std::optional<rl::Progress> progress_;
};

int top(const TopOptions& options) {
  if (!std::filesystem::is_directory(options.run_dir)) {
    std::cerr << options.run_dir.string() << ": is no directory; expected the --run-dir of a run\n";
    return kExitUsage;
  }
  if (!holds_run(options.run_dir)) {
    std::cerr << options.run_dir.string() << ": holds no run; expected the --run-dir of a run\n";
    return kExitUsage;
  }
  finish_on_stop_signals();
  RunView view(options);
  bool at_work = true;
  while (at_work && stop_signal() == 0) {
    at_work = !options.once && rl::trainer_at_work(options.run_dir);  // before the last read
    view.show();
    if (at_work) {
      std::this_thread::sleep_for(kBetweenReads);
    }
  }
  view.finish();
  if (!options.once && stop_signal() == 0) {
    rl::log::line(describe_end(options.run_dir, !view.empty()));
  }
  return kExitOk;
}

}  // namespace

void add_top_command(CommandContext& context) {
  const auto options = std::make_shared<TopOptions>();
  CLI::App* command = context.app.add_subcommand(
      "top", "Follow a run from another shell: a live screen on a terminal, else a line per step");
  command->add_option("run_dir", options->run_dir, "directory of the run")->required();
  command->add_flag("--once", options->once,
                    "print the steps that are done to standard output and exit");
  command->callback([options, &context] { context.exit_code = top(*options); });
}

}  // namespace ringside::tools
