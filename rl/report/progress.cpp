#include "rl/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace ringside::rl {
namespace {

constexpr int kBarWidth = 24;
constexpr double kNewestWeight = 0.1;

std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// 987 -> "987", 12345 -> "12.3k".
std::string short_count(double value) {
  if (!(std::abs(value) >= 1000)) return printed("%.0f", value);
  if (std::abs(value) < 1e6) return printed("%.1fk", value / 1e3);
  return printed("%.1fM", value / 1e6);
}

std::string bar_of(double fraction, bool color) {
  const int full = static_cast<int>(fraction * kBarWidth);
  const std::string done(full, '#');
  const std::string left(kBarWidth - full, '-');
  return "[" + (color ? "\x1b[32m" + done + "\x1b[0m" : done) + left + "]";
}

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
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
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

std::string render_bar(const ProgressUpdate& update, std::int64_t total_steps, double eta_s,
                       const TerminalTraits& terminal) {
  const double fraction =
      std::clamp(static_cast<double>(update.step) /
                     static_cast<double>(std::max<std::int64_t>(total_steps, 1)),
                 0.0, 1.0);
  struct Part {
    std::string text;
    std::size_t width;  // on the screen: escapes take none
  };
  const auto plain = [](std::string text) {
    const std::size_t width = text.size();
    return Part{std::move(text), width};
  };
  std::vector<Part> parts;
  parts.push_back(plain("train " + printed("%3.0f%%", std::floor(fraction * 100))));
  parts.push_back(plain(std::to_string(update.step) + "/" + std::to_string(total_steps)));
  if (update.reward) {
    parts.push_back(plain("reward " + printed("%.3f", *update.reward)));
  }
  parts.push_back(plain("loss " + printed("%.4f", update.loss)));
  if (update.evaluation) {
    parts.push_back(plain("eval " + printed("%.3f", *update.evaluation)));
  }
  parts.push_back(plain("eta " + format_duration(eta_s)));
  parts.push_back(plain(short_count(update.tokens_per_s) + " tok/s"));

  const auto room = static_cast<std::size_t>(std::max(terminal.columns - 1, 0));
  std::string line;
  std::size_t used = 0;
  for (const Part& part : parts) {
    const std::size_t gap = line.empty() ? 0 : 2;
    if (used + gap + part.width > room) break;
    line += std::string(gap, ' ') + part.text;
    used += gap + part.width;
  }
  if (used + kBarWidth + 3 <= room) line = bar_of(fraction, terminal.color) + " " + line;
  return line;
}

std::string render_line(const ProgressUpdate& update, std::int64_t total_steps, double eta_s) {
  std::string line = "step " + std::to_string(update.step) + "/" + std::to_string(total_steps);
  if (update.reward) line += "  reward " + printed("%.4f", *update.reward);
  line += "  loss " + printed("%.6g", update.loss);
  if (update.evaluation) {
    line += "  eval " + printed("%.4f", *update.evaluation);
  }
  line += "  " + printed("%.0f", update.tokens_per_s) + " tok/s";
  line += "  " + printed("%.2f", update.step_s) + " s";
  return line + "  eta " + format_duration(eta_s);
}

Progress::Progress(std::int64_t total_steps, ProgressOutput output)
    : total_steps_(total_steps), output_(std::move(output)) {}

void Progress::update(const ProgressUpdate& update) {
  average_step_s_ = average_step_s_
                        ? *average_step_s_ + kNewestWeight * (update.step_s - *average_step_s_)
                        : update.step_s;
  const double eta_s =
      static_cast<double>(std::max<std::int64_t>(total_steps_ - update.step, 0)) * *average_step_s_;
  if (output_.status) {
    bar_ = render_bar(update, total_steps_, eta_s, output_.terminal());
    output_.status(bar_);
  } else {
    output_.line(render_line(update, total_steps_, eta_s));
  }
}

void Progress::finish() {
  if (!bar_.empty()) {
    output_.status("");
    output_.line(bar_);
  }
  bar_.clear();
}

}  // namespace ringside::rl
