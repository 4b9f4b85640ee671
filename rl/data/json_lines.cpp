#include "rl/data/json_lines.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "engine/json/json_text.h"

namespace ringside::rl {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

// Reads the file from its beginning to `end` in chunks.
template <class Visit>
void visit_chunks(std::ifstream& file, int64_t end, const Visit& visit) {
  file.clear();
  file.seekg(0);
  std::string chunk(kChunk, '\0');
  for (int64_t at = 0; at < end && file;) {
    file.read(chunk.data(), static_cast<std::streamsize>(
                                std::min<int64_t>(static_cast<int64_t>(kChunk), end - at)));
    const auto got = static_cast<std::size_t>(file.gcount());
    visit(std::string_view(chunk).substr(0, got), at);
    at += static_cast<int64_t>(got);
  }
}

}  // namespace

std::ifstream open_json_lines(const std::filesystem::path& path) {
  if (path.empty()) {
    throw std::runtime_error("no data file is set");
  }
  if (std::filesystem::is_directory(path)) {
    throw std::runtime_error(path.string() + " is a directory, " + kJsonLines);
  }
  if (!std::filesystem::exists(path)) {
    throw std::runtime_error(path.string() +
                             " does not exist (a name on a hub is not downloaded; "
                             "expected a file on this machine)");
  }
  std::ifstream file(path, std::ios::binary);
  std::string head(64, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad() || !file.is_open()) {
    throw std::runtime_error("cannot read " + path.string());
  }
  if (head.starts_with("\x1f\x8b") || engine::is_lfs_pointer(head)) {
    throw std::runtime_error(path.string() + " " +
                             (engine::is_lfs_pointer(head)
                                  ? engine::lfs_advice()
                                  : std::string("is compressed by gzip, ") + kJsonLines));
  }
  file.clear();
  file.seekg(0);
  return file;
}

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

nlohmann::json parse_json_line(const std::string& text, const std::filesystem::path& path,
                               int64_t line_number) {
  nlohmann::json line = engine::parse_json(text, path.string(), line_number);
  if (!line.is_object()) {
    throw std::runtime_error(path.string() + ":" + std::to_string(line_number) + ": holds " +
                             engine::kind_of(line) + ", expected an object (" + kJsonLines + ")");
  }
  return line;
}

LineIndex::LineIndex(std::filesystem::path path)
    : path_(std::move(path)), file_(open_json_lines(path_)) {
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path_));
  int64_t begin = 0;  // of the current line
  bool blank = true;  // so far
  int64_t number = 1;
  visit_chunks(file_, bytes, [&](std::string_view chunk, int64_t at) {
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      const char c = chunk[i];
      if (c == '\n') {
        begin = at + static_cast<int64_t>(i) + 1;
        blank = true;
        ++number;
      } else if (blank && c != ' ' && c != '\t' && c != '\r') {
        const int64_t before = number - 1 - size();
        if (before > (blanks_.empty() ? 0 : blanks_.back().second)) {
          blanks_.emplace_back(size(), before);
        }
        offsets_.push_back(begin);
        blank = false;
      }
    }
  });
  offsets_.shrink_to_fit();
  if (offsets_.empty()) {
    throw std::runtime_error(path_.string() + " holds no example");
  }
}

std::string LineIndex::line(int64_t i) {
  std::string text;
  if (offset(i) != at_) {  // a seek drops what the stream has read ahead
    file_.clear();
    file_.seekg(offset(i));
  }
  if (!std::getline(file_, text)) {
    at_ = -1;
    throw std::runtime_error(path_.string() + " has become shorter while it was in use");
  }
  at_ = offset(i) + static_cast<int64_t>(text.size()) + 1;
  return text;
}

int64_t LineIndex::line_number(int64_t i) const {
  const auto after = std::upper_bound(
      blanks_.begin(), blanks_.end(), i,
      [](int64_t index, const std::pair<int64_t, int64_t>& run) { return index < run.first; });
  return i + 1 + (after == blanks_.begin() ? 0 : std::prev(after)->second);
}

}  // namespace ringside::rl
