// Records of data files: JSON objects by index, with
// their members in the order of the file, from JSON Lines and JSON arrays.
// Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "rl/data/data_order.h"

namespace ringside::rl {

// One file.
// Thread safety: none.
class RecordFile {
 public:
  explicit RecordFile(std::filesystem::path path) : path_(std::move(path)) {}
  virtual ~RecordFile() = default;
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // At least 1.
  virtual int64_t size() const = 0;
  // Object i.
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

// Opens a file, whose form its content decides.
// Throws: std::runtime_error naming the file when it cannot be read, has no record, or has a form
// that is not supported.
std::unique_ptr<RecordFile> open_record_file(const std::filesystem::path& path);

// The files of data.train and its like in order, as one row of records.
// Thread safety: none.
class RecordSet {
 public:
  // files: as data_file_entries() in rl/config/data_files.h. The files that a pattern matches are
  // in alphabetical order.
  // Throws: as open_record_file, and for a pattern that no file matches.
  explicit RecordSet(const std::string& files);

  int64_t size() const;
  nlohmann::ordered_json record(int64_t i);
  std::string place(int64_t i) const;
  int64_t offset(int64_t i) const;
  // The default of a record's "id": its number; with several files "NAME:NUMBER".
  std::string id(int64_t i) const;
  // The entry of `files` that record i is from.
  std::size_t part(int64_t i) const;
  // Sizes and weights of the entries.
  const std::vector<OrderPart>& parts() const { return parts_; }

 private:
  struct Member {
    std::unique_ptr<RecordFile> file;
    std::size_t part = 0;
    int64_t first = 0;  // index of its first record
    int64_t bytes = 0;  // of the files before
  };
  const Member& member(int64_t i) const;

  std::vector<Member> members_;
  std::vector<OrderPart> parts_;
};

// Whether every file of `files` is on this machine.
bool data_files_exist(const std::string& files);

}  // namespace ringside::rl
