// Progress display: on a terminal a bar with reward, tokens/s and ETA, elsewhere one line per step.
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
  std::optional<double> evaluation = {};  // the last one's reward or loss, if any
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
// terminals), not counting colour escapes: "[####------] train  40%  40/100  reward 0.532  loss
// 0.0125  eval 0.610  eta 1:02  12.3k tok/s". On a narrow terminal the bar is left out first, then
// the fields from the right. `eta_s` is in seconds.
std::string render_bar(const ProgressUpdate& update, std::int64_t total_steps, double eta_s,
                       const TerminalTraits& terminal);

// "step 40/100  reward 0.532  loss 0.0123  eval 0.61  12345 tok/s  1.52 s  eta 1:02".
std::string render_line(const ProgressUpdate& update, std::int64_t total_steps, double eta_s);

// 59 -> "0:59", 3723 -> "1:02:03", 90000 -> "1d 1:00:00"; not finite or negative -> "?".
std::string format_duration(double seconds);

// Outputs of a progress display.
struct ProgressOutput {
  // Writes a permanent line; the text has no line end.
  std::function<void(const std::string&)> line;
  // Draws the bar in place of the previous one; "" removes it. Empty: no bar.
  std::function<void(const std::string&)> status;
  // Called at each draw of the bar, because a terminal may be resized.
  std::function<TerminalTraits()> terminal;
};

// Draws updates as they arrive: a bar below the log if there is a status output, else one line per
// step.
// Thread safety: none.
class Progress {
 public:
  Progress(std::int64_t total_steps, ProgressOutput output);

  // Draws an update. The ETA is the remaining steps times a moving average of the step time (weight
  // 0.1 for the newest).
  void update(const ProgressUpdate& update);
  // Writes the last bar as a permanent line.
  void finish();

 private:
  std::int64_t total_steps_;
  ProgressOutput output_;
  std::optional<double> average_step_s_;
  std::string bar_;  // as drawn last
};

}  // namespace ringside::rl
