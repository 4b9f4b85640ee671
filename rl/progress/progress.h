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
// terminals), colour escapes not counted: "[####------] train  40%  40/100  reward 0.532  eta
// 1:02  12.3k tok/s". On a narrow terminal the bar goes first, then the words from the right.
// `eta_s` is in seconds.
std::string render_bar(const ProgressUpdate& update, std::int64_t total_steps, double eta_s,
                       const TerminalTraits& terminal);

// "step 40/100  reward 0.532  loss 0.0123  12345 tok/s  1.52 s  eta 1:02".
std::string render_line(const ProgressUpdate& update, std::int64_t total_steps, double eta_s);

// 59 -> "0:59", 3723 -> "1:02:03", 90000 -> "1d 1:00:00"; not finite or negative -> "?".
std::string format_duration(double seconds);

// Draws updates as they come. Not thread-safe; a logger that writes to the same terminal calls
// clear() first.
class Progress {
 public:
  // `bar`: redraw one line in place, else one line a step. `write` receives the bytes, e.g. to
  // standard error.
  Progress(std::int64_t total_steps, bool bar, TerminalTraits terminal,
           std::function<void(const std::string&)> write);

  // The ETA is the remaining steps times a moving average of the step time (weight 0.1 for the
  // newest).
  void update(const ProgressUpdate& update);
  // Removes a bar from the terminal, until the next update draws it again; nothing for lines.
  void clear();
  // Ends the bar's line, so that what follows starts on its own.
  void finish();

 private:
  std::int64_t total_steps_;
  bool bar_;
  TerminalTraits terminal_;
  std::function<void(const std::string&)> write_;
  std::optional<double> average_step_s_;
  bool drawn_ = false;
};

}  // namespace ringside::rl
