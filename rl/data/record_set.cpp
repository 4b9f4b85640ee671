#include "rl/data/record_set.h"

#include <glob.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/json/json_text.h"
#include "rl/config/data_files.h"
#include "rl/data/json_lines.h"
#include "rl/data/parquet_file.h"

namespace ringside::rl {
namespace {

using Json = nlohmann::ordered_json;

// Finds a key that stands twice in one object while a text is parsed. Readers keep one of the two
// values, which is never said.
class RepeatedKey {
 public:
  bool operator()(int /*depth*/, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == Json::parse_event_t::key &&
               !open_.back().insert(parsed.get<std::string>()).second && found_.empty()) {
      found_ = parsed.get<std::string>();
    }
    return true;
  }
  // Throws: std::runtime_error if there was one.
  void refuse(const std::string& place) const {
    if (!found_.empty()) {
      throw std::runtime_error(place + ": key \"" + found_ +
                               "\" stands twice in one object, expected once");
    }
  }

 private:
  std::vector<std::set<std::string>> open_;  // the keys of each object that is being read
  std::string found_;
};

class LinesFile final : public RecordFile {
 public:
  explicit LinesFile(const std::filesystem::path& file) : RecordFile(file), lines_(file) {}
  int64_t size() const override { return lines_.size(); }
  Json record(int64_t i) override {
    const std::string text = lines_.line(i);
    RepeatedKey repeated;
    auto object = Json::parse(text, std::ref(repeated), /*allow_exceptions=*/false);
    if (!object.is_object()) {
      parse_json_line(text, path(), number(i));  // throws
    }
    repeated.refuse(place(i));
    return object;
  }
  int64_t number(int64_t i) const override { return lines_.line_number(i); }
  std::string place(int64_t i) const override {
    return path().string() + ":" + std::to_string(number(i));
  }
  int64_t offset(int64_t i) const override { return lines_.offset(i); }

 private:
  LineIndex lines_;
};

std::string row_place(const std::filesystem::path& path, int64_t i) {
  return path.string() + ": row " + std::to_string(i + 1);
}

Json read_array(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  RepeatedKey repeated;
  auto rows = Json::parse(file, std::ref(repeated), /*allow_exceptions=*/false);
  if (rows.is_discarded()) {
    engine::read_json_file(path);  // throws, with the place
    throw std::runtime_error("cannot read " + path.string());
  }
  repeated.refuse(path.string());
  return rows;
}

// A JSON array, which is held in memory.
class ArrayFile final : public RecordFile {
 public:
  explicit ArrayFile(const std::filesystem::path& file)
      : RecordFile(file), rows_(read_array(file)) {
    if (!rows_.is_array() || rows_.empty()) {
      throw std::runtime_error(file.string() +
                               (rows_.is_array() ? " is an empty array" : " is not an array"));
    }
    bytes_each_ = static_cast<int64_t>(std::filesystem::file_size(file) /
                                       static_cast<uint64_t>(rows_.size()));
  }
  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  Json record(int64_t i) override {
    const Json& row = rows_.at(static_cast<std::size_t>(i));
    if (!row.is_object()) {
      throw std::runtime_error(place(i) + ": holds " + engine::kind_of(row) +
                               ", expected an object");
    }
    return row;
  }
  int64_t number(int64_t i) const override { return i + 1; }
  std::string place(int64_t i) const override { return row_place(path(), i); }
  int64_t offset(int64_t i) const override { return i * bytes_each_; }

 private:
  Json rows_;
  int64_t bytes_each_ = 0;
};

bool is_pattern(const std::string& path) {
  return path.find_first_of("*?[") != std::string::npos && !std::filesystem::exists(path);
}

// The files that a pattern matches in alphabetical order; a path without a pattern itself.
std::vector<std::filesystem::path> matches(const std::string& path) {
  if (!is_pattern(path)) {
    return {path};
  }
  glob_t found{};
  const int failed = ::glob(path.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::filesystem::path> files;
  for (std::size_t i = 0; failed == 0 && i < found.gl_pathc; ++i) {
    files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  // Not in the order of the locale, which differs between machines.
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::unique_ptr<RecordFile> open_record_file(const std::filesystem::path& path) {
  std::ifstream file = open_json_lines(path);
  if (is_parquet_file(path)) {
    return open_parquet_file(path);
  }
  char first = ' ';
  while (file.get(first) && std::isspace(static_cast<unsigned char>(first)) != 0) {
  }
  if (file && first == '[' && path.extension() != ".jsonl") {
    return std::make_unique<ArrayFile>(path);
  }
  if (file && first != '{' && (path.extension() == ".csv" || path.extension() == ".tsv")) {
    throw std::runtime_error(
        path.string() +
        " is a table of text; expected JSON Lines, a JSON array of objects or Parquet (pandas: "
        "read_csv(FILE).to_json(OUTPUT, orient=\"records\", lines=True))");
  }
  return std::make_unique<LinesFile>(path);
}

RecordSet::RecordSet(const std::string& files) {
  const auto entries = data_file_entries(files);
  if (entries.empty()) {
    throw std::runtime_error("no data file is set");
  }
  int64_t bytes = 0;
  int64_t first = 0;
  for (const DataFileEntry& entry : entries) {
    const auto paths = matches(entry.path);
    if (paths.empty()) {
      throw std::runtime_error("no file matches " + entry.path);
    }
    OrderPart part{0, entry.weight.value_or(0.0)};
    for (const std::filesystem::path& path : paths) {
      Member member{open_record_file(path), parts_.size(), first, bytes};
      first += member.file->size();
      part.size += member.file->size();
      bytes += static_cast<int64_t>(std::filesystem::file_size(path));
      members_.push_back(std::move(member));
    }
    parts_.push_back(part);
  }
}

int64_t RecordSet::size() const { return members_.back().first + members_.back().file->size(); }

const RecordSet::Member& RecordSet::member(int64_t i) const {
  const auto after =
      std::upper_bound(members_.begin(), members_.end(), i,
                       [](int64_t index, const Member& m) { return index < m.first; });
  return *std::prev(after);
}

Json RecordSet::record(int64_t i) {
  const Member& m = member(i);
  return m.file->record(i - m.first);
}

std::optional<std::vector<RecordBlob>> RecordSet::blobs(int64_t i, const std::string& column) {
  const Member& m = member(i);
  return m.file->blobs(i - m.first, column);
}

std::filesystem::path RecordSet::folder(int64_t i) const {
  return std::filesystem::absolute(member(i).file->path()).parent_path();
}

std::string RecordSet::place(int64_t i) const {
  const Member& m = member(i);
  return m.file->place(i - m.first);
}

int64_t RecordSet::offset(int64_t i) const {
  const Member& m = member(i);
  return m.bytes + m.file->offset(i - m.first);
}

std::string RecordSet::id(int64_t i) const {
  const Member& m = member(i);
  const std::string number = std::to_string(m.file->number(i - m.first));
  return members_.size() == 1 ? number : m.file->path().filename().string() + ":" + number;
}

std::size_t RecordSet::part(int64_t i) const { return member(i).part; }

std::vector<std::filesystem::path> data_files(const std::string& files) {
  std::vector<std::filesystem::path> paths;
  for (const DataFileEntry& entry : data_file_entries(files)) {
    const auto found = matches(entry.path);
    paths.insert(paths.end(), found.begin(), found.end());
  }
  return paths;
}

bool data_files_exist(const std::string& files) {
  const auto entries = data_file_entries(files);
  return !entries.empty() &&
         std::all_of(entries.begin(), entries.end(), [](const DataFileEntry& entry) {
           const auto paths = matches(entry.path);
           return !paths.empty() && std::filesystem::exists(paths.front());
         });
}

}  // namespace ringside::rl
