#include "rl/report/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>

namespace ringside::rl::log {
namespace {

std::string pattern_with(std::string_view prefix) {
  std::string escaped;
  for (const char c : prefix) {
    escaped.append(c == '%' ? 2 : 1, c);
  }
  return "%Y-%m-%d %H:%M:%S.%e %-5l " + (escaped.empty() ? "" : "[" + escaped + "] ") + "%v";
}

// Removes the cursor's line and all below it: the status, at whose first line the cursor stands.
constexpr char kClearBelow[] = "\r\x1b[J";

// Draws the status over the one before without clearing that first, so that nothing flickers. The
// cursor ends at the first line, where the next line of the log goes.
std::string drawn(const std::string& status) {
  if (status.empty()) {
    return kClearBelow;
  }
  std::string text = "\r";
  int breaks = 0;
  for (const char c : status) {
    text += c == '\n' ? "\x1b[K\n" : std::string(1, c);
    breaks += c == '\n' ? 1 : 0;
  }
  text += "\x1b[J";
  return text + (breaks > 0 ? "\x1b[" + std::to_string(breaks) + "A\r" : "\r");
}

// Log sink: standard error, with the status line at its end.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void line(const std::string& text) {
    const std::lock_guard lock(mutex_);
    append(lines_, text + "\n");
    write_above_status(text + "\n");
  }

  void set_status(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (!text.empty() || !status_.empty()) {
      write(drawn(text));
    }
    status_ = text;
  }

  void copy_warnings_to(const std::string& path) {
    const std::lock_guard lock(mutex_);
    reopen(warnings_, path);
  }

  void copy_lines_to(const std::string& path) {
    const std::lock_guard lock(mutex_);
    reopen(lines_, path);
  }

  void copy_error(const std::string& text) {
    const std::lock_guard lock(mutex_);
    spdlog::memory_buf_t formatted;
    formatter_->format({"ringside", spdlog::level::err, text}, formatted);
    const std::string line(formatted.data(), formatted.size());
    append(warnings_, line);
    append(lines_, line);
  }

  void copy_line(const std::string& text) {
    const std::lock_guard lock(mutex_);
    append(lines_, text + "\n");
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    const std::string text(formatted.data(), formatted.size());
    if (message.level >= spdlog::level::warn) {
      append(warnings_, text);
    }
    append(lines_, text);
    write_above_status(text);
  }
  void flush_() override { std::fflush(stderr); }

  static void reopen(std::ofstream& file, const std::string& path) {
    file.close();
    file.clear();
    if (!path.empty()) {
      file.open(path, std::ios::app);
    }
  }
  static void append(std::ofstream& file, const std::string& text) {
    if (file.is_open()) {
      file << text << std::flush;
      file.clear();  // a full disk must not end the copy for ever
    }
  }

  // On a terminal the cursor may stand at the status of another process of the run; that process
  // redraws it.
  void write_above_status(const std::string& text) {
    const bool shown = !status_.empty() || isatty(STDERR_FILENO) == 1;
    write((shown ? kClearBelow : "") + text + (status_.empty() ? "" : drawn(status_)));
  }
  // In one write, so that lines of other processes come before or after it.
  static void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }

  std::string status_;
  std::ofstream warnings_;
  std::ofstream lines_;
};

const std::shared_ptr<StderrSink>& sink() {
  static const auto instance = std::make_shared<StderrSink>();
  return instance;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("ringside", sink());
    made->set_pattern(pattern_with(""));
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

void write(spdlog::level::level_enum level, const std::string& text) {
  logger().log(level, spdlog::string_view_t(text));
}

}  // namespace

void set_level(Level level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  logger().set_level(kLevels[static_cast<int>(level)]);
}

void set_prefix(std::string_view prefix) { logger().set_pattern(pattern_with(prefix)); }

void debug(const std::string& text) { write(spdlog::level::debug, text); }
void info(const std::string& text) { write(spdlog::level::info, text); }
void warn(const std::string& text) { write(spdlog::level::warn, text); }
void error(const std::string& text) { write(spdlog::level::err, text); }

void line(const std::string& text) { sink()->line(text); }
void set_status(const std::string& text) { sink()->set_status(text); }
void copy_warnings_to(const std::string& path) { sink()->copy_warnings_to(path); }
void copy_lines_to(const std::string& path) { sink()->copy_lines_to(path); }
void copy_line(const std::string& text) { sink()->copy_line(text); }
void copy_error(const std::string& text) { sink()->copy_error(text); }

}  // namespace ringside::rl::log
