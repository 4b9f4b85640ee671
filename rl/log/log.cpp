#include "rl/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace ringside::rl::log {
namespace {

std::string pattern_with(std::string_view prefix) {
  std::string escaped;
  for (const char c : prefix) escaped.append(c == '%' ? 2 : 1, c);
  return "%Y-%m-%d %H:%M:%S.%e %-5l " + (escaped.empty() ? "" : "[" + escaped + "] ") + "%v";
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("ringside",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
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

}  // namespace ringside::rl::log
