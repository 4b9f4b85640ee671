// Records of one data file: JSON objects by index. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ringside::rl {

// An image of a record: the bytes of its file, or a text that says where it is.
struct RecordBlob {
  std::vector<uint8_t> bytes;
  std::string text;  // a path or a data URI, if there are no bytes
};

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
  // What a column with bytes holds in record i, which record() leaves out because JSON has no
  // bytes: bytes, a structure with "bytes" or "path", or a list of these. No value where the file
  // is JSON or has no such column. Throws: as record(), and for a column of another type.
  virtual std::optional<std::vector<RecordBlob>> blobs(int64_t /*i*/,
                                                       const std::string& /*column*/) {
    return std::nullopt;
  }
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
