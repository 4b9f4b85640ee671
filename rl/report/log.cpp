#include "rl/report/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>

namespace ringside::rl::log {
namespace {

std::string pattern_with(std::string_view prefix) {
  std::string escaped;
  for (const char c : prefix) escaped.append(c == '%' ? 2 : 1, c);
  return "%Y-%m-%d %H:%M:%S.%e %-5l " + (escaped.empty() ? "" : "[" + escaped + "] ") + "%v";
}

constexpr char kClearLine[] = "\r\x1b[2K";

// Log sink: standard error, with the status line at its end.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void line(const std::string& text) {
    const std::lock_guard lock(mutex_);
    write_above_status(text + "\n");
  }

  void set_status(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (!text.empty() || !status_.empty()) {
      write(kClearLine + text);
    }
    status_ = text;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    write_above_status(std::string(formatted.data(), formatted.size()));
  }
  void flush_() override { std::fflush(stderr); }

  // On a terminal the line may hold the bar of another process of the run; that process redraws it.
  void write_above_status(const std::string& text) {
    const bool drawn = !status_.empty() || isatty(STDERR_FILENO) == 1;
    write(drawn ? kClearLine + text + status_ : text);
  }
  // In one write, so that lines of other processes come before or after it.
  static void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }

  std::string status_;
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

}  // namespace ringside::rl::log
