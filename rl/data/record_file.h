// Records of one data file: JSON objects by index. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

namespace ringside::rl {

// Thread safety: none.
class RecordFile {
 public:
  // path: named in errors.
  explicit RecordFile(std::filesystem::path path) : path_(std::move(path)) {}
  virtual ~RecordFile() = default;
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // At least 1.
  virtual int64_t size() const = 0;
  // Object i, with its members in the order of the file.
  // Throws: std::runtime_error "PLACE: ..." when it cannot be read or is no object.
  virtual nlohmann::ordered_json record(int64_t i) = 0;
  // The number of record i in its file, from 1: a line or a row.
  virtual int64_t number(int64_t i) const = 0;
  // "FILE:LINE", or "FILE: row N".
  virtual std::string place(int64_t i) const = 0;
  // About how many bytes of the file precede record i.
  virtual int64_t offset(int64_t i) const = 0;

 private:
  std::filesystem::path path_;
};

}  // namespace ringside::rl
