// Logging of rl/ and tools/ as lines on standard error. The logging library is not visible in this
// header.
//
// That library and torch contain different versions of fmt. So this header includes neither, and
// the implementation is a target of its own without torch.
#pragma once

#include <string>
#include <string_view>

namespace ringside::rl::log {

enum class Level { kDebug, kInfo, kWarn, kError };

// Lines below the level are dropped. Default: kInfo.
void set_level(Level level);

// Sets the name of this process that precedes each line, e.g. "trainer 0" or "worker 2". Default:
// none. Call it once at start-up, before other threads log.
void set_prefix(std::string_view prefix);

// Each writes one line: "2026-01-31 12:00:00.123 info  [trainer 0] text". The line is written and
// flushed on return. Text is never used as a format. Line breaks in it are kept.
// Thread safety: safe to call concurrently.
void debug(const std::string& text);
void info(const std::string& text);
void warn(const std::string& text);
void error(const std::string& text);

// Writes the text alone as one line, at any level.
// Thread safety: safe to call concurrently.
void line(const std::string& text);

// Sets a status of one or more lines that stays below the log on a terminal, e.g. the progress.
// Log lines appear above it and it is redrawn. Replaces the previous status; "" removes it. The
// lines must be shorter than the terminal is wide.
// Thread safety: safe to call concurrently.
void set_status(const std::string& text);

// Also appends warnings and errors to the file, from now on; "" ends that. A file that cannot be
// opened is ignored.
// Thread safety: safe to call concurrently.
void copy_warnings_to(const std::string& path);

// Also appends every line to the file, from now on; "" ends that. A file that cannot be opened is
// ignored.
// Thread safety: safe to call concurrently.
void copy_lines_to(const std::string& path);

// Writes an error to these files alone, for one that is printed in another way.
// Thread safety: safe to call concurrently.
void copy_error(const std::string& text);

// Writes a line to the file of copy_lines_to() alone, for one that is printed in another way.
// Thread safety: safe to call concurrently.
void copy_line(const std::string& text);

}  // namespace ringside::rl::log
