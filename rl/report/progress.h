// Progress display: on a terminal one live screen of a few lines, elsewhere one line per step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rl/report/metrics.h"

namespace ringside::rl {

struct ProgressUpdate {
  int64_t step = 0;                       // steps done, 1 after the first
  Metrics metrics;                        // of the step, as in metrics.jsonl
  std::optional<double> evaluation = {};  // the last one's reward or loss, if any
};

struct TerminalTraits {
  bool is_terminal = false;  // standard error is a terminal that can redraw (TERM is not "dumb")
  bool color = false;        // is_terminal, and NO_COLOR is unset or empty (no-color.org)
  int columns = 80;          // COLUMNS, else the terminal's own width, else 80
};

// Reads the environment and standard error's terminal.
TerminalTraits detect_terminal();

// The screen as up to 8 lines, each of at most `columns` - 1 characters (a full last column wraps
// on some terminals), not counting colour escapes:
//   [#########---------------]  40 %  40/100  eta 1:30  1.50 s/step  12.3k tok/s
//   reward 0.532  eval 0.610  loss 0.0125  kl 0.0013  entropy 0.710  grad 0.52  lr 2e-06
//   length 7.1, max 12, cut 0 %  waiting 34 %  weights v40  age 0.2, max 1  workers 2
// A metric that is absent has no field. On a narrow terminal the bar is left out and fields move to
// further lines. `eta_s` is in seconds. since_s: seconds since the step ended; from 1 on the screen
// says how long the next step has taken: "step 41 for 0:35".
std::vector<std::string> render_screen(const ProgressUpdate& update, int64_t total_steps,
                                       double eta_s, const TerminalTraits& terminal,
                                       double since_s = 0.0);

// "step 40/100  reward 0.5320  loss 0.0123  eval 0.6100  12345 tok/s  1.52 s  eta 1:02".
std::string render_line(const ProgressUpdate& update, int64_t total_steps, double eta_s);

// 59 -> "0:59", 3723 -> "1:02:03", 90000 -> "1d 1:00:00"; not finite or negative -> "?".
std::string format_duration(double seconds);

// Outputs of a progress display.
struct ProgressOutput {
  // Writes a permanent line; the text has no line end.
  std::function<void(const std::string&)> line;
  // Draws the screen's lines in place of the previous ones; "" removes them. Empty: no screen.
  std::function<void(const std::string&)> status;
  // Called at each draw of the screen, because a terminal may be resized.
  std::function<TerminalTraits()> terminal;
  // How often the screen is drawn again while a step runs, by a thread of its own, which calls
  // `status` and `terminal`; 0: never.
  std::chrono::milliseconds redraw_every{0};
};

// Draws updates as they arrive: a screen below the log if there is a status output, else one line
// per step.
// Thread safety: none.
class Progress {
 public:
  // total_steps: those of the whole run; 0 if that is unknown.
  Progress(int64_t total_steps, ProgressOutput output);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Draws an update. Its metrics must hold "step_time". The ETA is the remaining steps times the
  // mean time of the last ten. The first step counts only until there is a second: it waits for
  // workers and servers to start.
  void update(const ProgressUpdate& update);
  // Removes the screen and writes the last step as a permanent line.
  void finish();

 private:
  void draw();  // under mutex_
  void redraw_until(const std::stop_token& stop);

  int64_t total_steps_;
  ProgressOutput output_;
  std::deque<double> last_steps_s_;
  int64_t steps_ = 0;      // updates so far
  std::string last_line_;  // of the step that the screen shows
  std::mutex mutex_;       // of what follows
  std::optional<ProgressUpdate> shown_;
  double eta_s_ = 0.0;  // at shown_at_
  std::chrono::steady_clock::time_point shown_at_;
  std::condition_variable_any stopped_;
  std::jthread redraws_;  // last: it ends before what it uses
};

}  // namespace ringside::rl
