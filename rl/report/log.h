// Logging of rl/ and tools/: lines on standard error, and nothing of the logging library in sight.
//
// The library behind it and torch carry different versions of fmt, so this header names neither and
// the implementation is a target of its own that includes no torch.
#pragma once

#include <string>
#include <string_view>

namespace ringside::rl::log {

enum class Level { kDebug, kInfo, kWarn, kError };

// Lines below the level are dropped. Default: kInfo.
void set_level(Level level);

// What this process is, put before each line, e.g. "trainer 0" or "worker 2". Default: nothing.
// Call it once at start-up, before other threads log.
void set_prefix(std::string_view prefix);

// One line each: "2026-01-31 12:00:00.123 info  [trainer 0] text". Thread-safe; written and flushed
// on return. Text is taken as it is, never as a format; line breaks in it stay, so a caller sees
// its message whole.
void debug(const std::string& text);
void info(const std::string& text);
void warn(const std::string& text);
void error(const std::string& text);

// The text alone as a line of its own, whatever the level. Thread-safe.
void line(const std::string& text);

// A line that stays below the log on a terminal, e.g. a progress bar: whatever is logged appears
// above it and it is drawn again. Replaces the one before; "" removes it. Thread-safe.
void set_status(const std::string& text);

}  // namespace ringside::rl::log
