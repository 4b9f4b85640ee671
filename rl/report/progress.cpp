#include "rl/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

namespace ringside::rl {
namespace {

constexpr int kBarWidth = 24;
constexpr std::size_t kStepsOfEta = 10;

std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// 987 -> "987", 12345 -> "12.3k".
std::string short_count(double value) {
  if (!(std::abs(value) >= 1000)) {
    return printed("%.0f", value);
  }
  if (std::abs(value) < 1e6) {
    return printed("%.1fk", value / 1e3);
  }
  return printed("%.1fM", value / 1e6);
}

std::string bar_of(double fraction, bool color) {
  const int full = static_cast<int>(fraction * kBarWidth);
  const std::string done(full, '#');
  const std::string left(kBarWidth - full, '-');
  return "[" + (color ? "\x1b[32m" + done + "\x1b[0m" : done) + left + "]";
}

double step_seconds(const Metrics& metrics) {
  return find_metric(metrics, "step_time").value_or(0.0);
}

double tokens_per_s(const Metrics& metrics) {
  const double seconds = step_seconds(metrics);
  return seconds > 0.0 ? find_metric(metrics, "num_tokens").value_or(0.0) / seconds : 0.0;
}

std::vector<std::string> pace_fields(const ProgressUpdate& update, int64_t total_steps,
                                     double fraction, double eta_s) {
  return {printed("%3.0f %%", std::floor(fraction * 100)),
          std::to_string(update.step) + "/" + std::to_string(total_steps),
          "eta " + format_duration(eta_s), printed("%.2f s/step", step_seconds(update.metrics)),
          short_count(tokens_per_s(update.metrics)) + " tok/s"};
}

std::vector<std::string> learning_fields(const ProgressUpdate& update) {
  std::vector<std::string> fields;
  const auto add = [&](const char* name, const char* format) {
    if (const auto value = find_metric(update.metrics, name)) {
      fields.push_back(printed(format, *value));
    }
  };
  add("reward", "reward %.3f");
  if (update.evaluation) {
    fields.push_back(printed("eval %.3f", *update.evaluation));
  }
  add("loss", "loss %.4f");
  add("kl", "kl %.4f");
  add("entropy", "entropy %.3f");
  add("grad_norm", "grad %.3g");
  add("learning_rate", "lr %.2g");
  return fields;
}

std::vector<std::string> rollout_fields(const Metrics& metrics) {
  std::vector<std::string> fields;
  const auto of = [&](const char* name) { return find_metric(metrics, name); };
  if (const auto length = of("completions/mean_length")) {
    fields.push_back(printed("length %.1f", *length) +
                     printed(", max %.0f", of("completions/max_length").value_or(0.0)) +
                     printed(", cut %.0f %%", 100 * of("completions/clipped_ratio").value_or(0.0)));
  }
  for (const char* stage : {"time/wait_rollouts", "time/wait_data"}) {
    if (const auto waited = of(stage); waited && step_seconds(metrics) > 0.0) {
      fields.push_back(printed("waiting %.0f %%", 100 * *waited / step_seconds(metrics)));
    }
  }
  if (const auto version = of("weight_version")) {
    fields.push_back(printed("weights v%.0f", *version));
  }
  if (const auto age = of("staleness/mean")) {
    fields.push_back(printed("age %.1f", *age) +
                     printed(", max %.0f", of("staleness/max").value_or(0.0)));
  }
  if (const auto workers = of("bridge/workers")) {
    fields.push_back(printed("workers %.0f", *workers));
  }
  return fields;
}

// Fields laid out in lines of at most `room` characters.
class ScreenLines {
 public:
  static constexpr std::size_t kMostLines = 8;

  explicit ScreenLines(std::size_t room) : room_(room) {}

  // Appends to the current line, or begins the next. A field that no line has room for is left
  // out.
  void add(const std::string& field) {
    if (field.size() > room_) {
      return;
    }
    if (!line_.empty() && line_.size() + 2 + field.size() > room_) {
      end_line();
    }
    line_ += (line_.empty() ? "" : "  ") + field;
  }

  // Puts a bar before the current line if there is room for it.
  void put_bar(double fraction, bool color) {
    if (line_.size() + kBarWidth + 3 <= room_) {
      line_ = bar_of(fraction, color) + " " + line_;
    }
  }

  void end_line() {
    if (!line_.empty() && lines_.size() < kMostLines) {
      lines_.push_back(line_);
    }
    line_.clear();
  }

  std::vector<std::string> take() && {
    end_line();
    return std::move(lines_);
  }

 private:
  std::size_t room_;
  std::string line_;
  std::vector<std::string> lines_;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

TerminalTraits detect_terminal() {
  TerminalTraits traits;
  traits.is_terminal = isatty(STDERR_FILENO) == 1 && environment("TERM") != "dumb";
  traits.color = traits.is_terminal && environment("NO_COLOR").empty();
  winsize size{};
  const int from_environment = std::atoi(environment("COLUMNS").c_str());
  if (from_environment > 0) {
    traits.columns = from_environment;
  } else if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    traits.columns = size.ws_col;
  }
  return traits;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) {
    return "?";
  }
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const auto days = static_cast<long long>(whole / 86400);
  const auto hours = static_cast<int>(whole / 3600 % 24);
  const auto minutes = static_cast<int>(whole / 60 % 60);
  const auto rest = static_cast<int>(whole % 60);
  char text[64];
  if (days > 0) {
    std::snprintf(text, sizeof(text), "%lldd %d:%02d:%02d", days, hours, minutes, rest);
  } else if (hours > 0) {
    std::snprintf(text, sizeof(text), "%d:%02d:%02d", hours, minutes, rest);
  } else {
    std::snprintf(text, sizeof(text), "%d:%02d", minutes, rest);
  }
  return text;
}

std::vector<std::string> render_screen(const ProgressUpdate& update, int64_t total_steps,
                                       double eta_s, const TerminalTraits& terminal,
                                       double since_s) {
  const auto room = static_cast<std::size_t>(std::max(terminal.columns - 1, 0));
  const double fraction = std::clamp(
      static_cast<double>(update.step) / static_cast<double>(std::max<int64_t>(total_steps, 1)),
      0.0, 1.0);
  ScreenLines lines(room);
  for (const std::string& field : pace_fields(update, total_steps, fraction, eta_s)) {
    lines.add(field);
  }
  if (since_s >= 1.0) {
    lines.add("step " + std::to_string(update.step + 1) + " for " + format_duration(since_s));
  }
  lines.put_bar(fraction, terminal.color);
  lines.end_line();
  for (const std::string& field : learning_fields(update)) {
    lines.add(field);
  }
  lines.end_line();
  for (const std::string& field : rollout_fields(update.metrics)) {
    lines.add(field);
  }
  return std::move(lines).take();
}

std::string render_line(const ProgressUpdate& update, int64_t total_steps, double eta_s) {
  std::string line = "step " + std::to_string(update.step) + "/" + std::to_string(total_steps);
  if (const auto reward = find_metric(update.metrics, "reward")) {
    line += "  reward " + printed("%.4f", *reward);
  }
  line += "  loss " + printed("%.6g", find_metric(update.metrics, "loss").value_or(0.0));
  if (update.evaluation) {
    line += "  eval " + printed("%.4f", *update.evaluation);
  }
  line += "  " + printed("%.0f", tokens_per_s(update.metrics)) + " tok/s";
  line += "  " + printed("%.2f", step_seconds(update.metrics)) + " s";
  return line + "  eta " + format_duration(eta_s);
}

Progress::Progress(int64_t total_steps, ProgressOutput output)
    : total_steps_(total_steps), output_(std::move(output)) {
  if (output_.status && output_.redraw_every.count() > 0) {
    redraws_ = std::jthread([this](const std::stop_token& stop) { redraw_until(stop); });
  }
}

void Progress::redraw_until(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, stop, output_.redraw_every, [] { return false; }) &&
         !stop.stop_requested()) {
    if (shown_) {
      draw();
    }
  }
}

void Progress::draw() {
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - shown_at_;
  const double eta_s = std::max(0.0, eta_s_ - since.count());
  std::string screen;
  for (const std::string& line :
       render_screen(*shown_, total_steps_, eta_s, output_.terminal(), since.count())) {
    screen += (screen.empty() ? "" : "\n") + line;
  }
  output_.status(screen);
}

void Progress::update(const ProgressUpdate& update) {
  ++steps_;
  if (steps_ == 2 || last_steps_s_.size() == kStepsOfEta) {
    last_steps_s_.pop_front();
  }
  last_steps_s_.push_back(step_seconds(update.metrics));
  const double mean_s = std::accumulate(last_steps_s_.begin(), last_steps_s_.end(), 0.0) /
                        static_cast<double>(last_steps_s_.size());
  const double eta_s =
      static_cast<double>(std::max<int64_t>(total_steps_ - update.step, 0)) * mean_s;
  last_line_ = render_line(update, total_steps_, eta_s);
  if (output_.status) {
    const std::lock_guard lock(mutex_);
    shown_ = update;
    shown_at_ = std::chrono::steady_clock::now();
    eta_s_ = eta_s;
    draw();
  } else {
    output_.line(last_line_);
  }
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  shown_.reset();
  if (output_.status && !last_line_.empty()) {
    output_.status("");
    output_.line(last_line_);
  }
  last_line_.clear();
}

}  // namespace ringside::rl
