// JSON Lines files: checked opening, parsing with errors that name the place, and an index of
// lines for files that are larger than memory. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ringside::rl {

inline constexpr const char* kJsonLines = "expected JSON Lines: one object a line";

// Opens a file that exists, at its beginning.
// Throws: std::runtime_error with the reason: no path, a directory, a file that is missing, cannot
// be read, is compressed by gzip, or is a pointer of Git LFS.
std::ifstream open_json_lines(const std::filesystem::path& path);

// Whether a line holds only blanks, tabs and carriage returns.
bool is_blank(const std::string& line);

// The object of a line. line_number: from 1, for the error.
// Throws: std::runtime_error "FILE:LINE: ..." for anything else.
nlohmann::json parse_json_line(const std::string& text, const std::filesystem::path& path,
                               int64_t line_number);

// Where the lines of a file begin that are not blank: 8 bytes a line in memory, 16 for a run of
// blank ones. Lines are numbered from 0, without the blank ones.
// Thread safety: none.
class LineIndex {
 public:
  // Reads the file once.
  // Throws: as open_json_lines; std::runtime_error when every line is blank.
  explicit LineIndex(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return static_cast<int64_t>(offsets_.size()); }
  // Offset of line i in the file, in bytes.
  // Throws: std::out_of_range for a line that is not there; line() too.
  int64_t offset(int64_t i) const { return offsets_.at(static_cast<std::size_t>(i)); }

  // The text of line i, read from the file.
  // Throws: std::runtime_error when the file has become shorter.
  std::string line(int64_t i);
  // Its number in the file, from 1.
  int64_t line_number(int64_t i) const;

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  int64_t at_ = -1;  // where the next read begins; -1: unknown
  std::vector<int64_t> offsets_;
  // Runs of blank lines: the index of the line after each, and the blank lines up to there.
  std::vector<std::pair<int64_t, int64_t>> blanks_;
};

}  // namespace ringside::rl
