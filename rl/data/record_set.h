// Records of data files: JSON objects by index, with their members in the order of the file, from
// JSON Lines, JSON arrays and Parquet. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "rl/data/data_order.h"
#include "rl/data/record_file.h"

namespace ringside::rl {

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

  // Records of all files.
  int64_t size() const;
  // Record i of the row; blobs, place and offset (from the beginning of the first file) likewise.
  // Throws: as RecordFile::record.
  nlohmann::ordered_json record(int64_t i);
  std::optional<std::vector<RecordBlob>> blobs(int64_t i, const std::string& column);
  std::string place(int64_t i) const;
  int64_t offset(int64_t i) const;
  // The folder of the file that record i is from.
  std::filesystem::path folder(int64_t i) const;
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

// The paths of `files`, patterns replaced by the files that they match.
std::vector<std::filesystem::path> data_files(const std::string& files);

// Whether every file of `files` is on this machine.
bool data_files_exist(const std::string& files);

}  // namespace ringside::rl
