// Part of a checkpoint: the slices that one rank writes, as a safetensors file. A slice is a 1-D
// tensor NAME@BEGIN, or NAME[C0:C1]@BEGIN if it has some columns alone; the metadata holds the
// shapes of the whole parameters.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "engine/params/named_slice.h"
#include "rl/checkpoint/manifest.h"

namespace ringside::rl {

// Which part of which checkpoint a file is.
struct PartId {
  int64_t step = 0;
  int64_t part = 0;
  int64_t parts = 1;
};

// Writes the part into `dir`, durably, and returns its name, size and hash.
// Shapes: the slices' values are on the host.
// Throws: std::runtime_error or std::system_error.
PartFile write_part(const std::filesystem::path& dir, const PartId& id,
                    const std::vector<engine::NamedSlice>& slices);

// Copies of slices in host memory. The memory is kept and used again by the next copy.
// Thread safety: none.
class HostCopy {
 public:
  // Copies the slices. The memory is pinned if they lie on a device.
  // Blocks: until the copies have arrived.
  void copy(const std::vector<engine::NamedSlice>& slices);
  // Of the last copy().
  const std::vector<engine::NamedSlice>& slices() const { return slices_; }

 private:
  at::Tensor memory_;
  std::vector<engine::NamedSlice> slices_;
};

// A mapped part.
class PartReader {
 public:
  struct Entry {
    std::string name;
    std::optional<sp::Range> columns;  // as NamedSlice's
    int64_t begin = 0;                 // of its elements, in the flattened block of these columns
    int64_t end = 0;
    at::ScalarType dtype = at::kFloat;
    std::size_t index = 0;
  };

  // Checks the file's size, its header and that it is the part that the manifest means; reads no
  // tensor.
  // Throws: std::runtime_error naming the file.
  PartReader(const std::filesystem::path& dir, const PartFile& expected, const PartId& id);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<Entry>& entries() const { return entries_; }
  // Shapes of the whole parameters that it has slices of.
  const std::map<std::string, std::vector<int64_t>>& shapes() const { return shapes_; }
  // The elements of a slice on the host: a view of the mapped file, which it keeps alive, or a copy
  // where the file is not aligned for the dtype.
  // Shapes: [end - begin].
  at::Tensor values(const Entry& entry) const { return file_.tensor(entry.index); }

  // Compares the hash of the file.
  // Blocks: until the whole file is read.
  // Throws: std::runtime_error naming the file when its hash is not the expected one.
  void verify() const;

 private:
  void read_metadata(const PartId& id);
  void read_entries();

  PartFile expected_;
  engine::SafetensorsFile file_;
  std::vector<Entry> entries_;
  std::map<std::string, std::vector<int64_t>> shapes_;
};

}  // namespace ringside::rl
