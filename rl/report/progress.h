// What a person watching sees: a bar with reward, tokens/s and ETA on a terminal, one line a step
// elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ringside::rl {

struct ProgressUpdate {
  std::int64_t step = 0;         // steps done, 1 after the first
  std::optional<double> reward;  // the step's mean reward; none in supervised fine-tuning
  double loss = 0;
  std::optional<double> eval_reward = {};  // of the last evaluation, if there was one
  double tokens_per_s = 0;
  double step_s = 0;  // wall time of this step in seconds
};

struct TerminalTraits {
  bool is_terminal = false;  // standard error is a terminal that can redraw (TERM is not "dumb")
  bool color = false;        // is_terminal, and NO_COLOR is unset or empty (no-color.org)
  int columns = 80;          // COLUMNS, else the terminal's own width, else 80
};

// Reads the environment and standard error's terminal.
TerminalTraits detect_terminal();

// The bar as one line of at most `columns` - 1 characters (a full last column wraps on some
// terminals), colour escapes not counted: "[####------] train  40%  40/100  reward 0.532  loss
// 0.0125  eval 0.610  eta 1:02  12.3k tok/s". On a narrow terminal the bar goes first, then the
// words from the right. `eta_s` is in seconds.
std::string render_bar(const ProgressUpdate& update, std::int64_t total_steps, double eta_s,
                       const TerminalTraits& terminal);

// "step 40/100  reward 0.532  loss 0.0123  eval 0.61  12345 tok/s  1.52 s  eta 1:02".
std::string render_line(const ProgressUpdate& update, std::int64_t total_steps, double eta_s);

// 59 -> "0:59", 3723 -> "1:02:03", 90000 -> "1d 1:00:00"; not finite or negative -> "?".
std::string format_duration(double seconds);

// Where a display goes.
struct ProgressOutput {
  std::function<void(const std::string&)> line;  // receives a line for good, without its end
  std::function<void(const std::string&)>
      status;  // receives the bar, which replaces the one before; "" removes it. Empty: no bar
  std::function<TerminalTraits()>
      terminal;  // asked at each draw of the bar: a terminal may be resized
};

// Draws updates as they come: one bar that stays below the log where there is an output for it,
// else one line a step. Not thread-safe.
class Progress {
 public:
  Progress(std::int64_t total_steps, ProgressOutput output);

  // The ETA is the remaining steps times a moving average of the step time (weight 0.1 for the
  // newest).
  void update(const ProgressUpdate& update);
  // Leaves the last bar as a line.
  void finish();

 private:
  std::int64_t total_steps_;
  ProgressOutput output_;
  std::optional<double> average_step_s_;
  std::string bar_;  // as drawn last
};

}  // namespace ringside::rl
