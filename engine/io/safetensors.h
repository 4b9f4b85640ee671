// Reader and writer of the safetensors format: 8 bytes of header length (little-endian), a JSON
// header {name: {dtype, shape, data_offsets}}, then the tensors' bytes.
//
// Source: https://github.com/huggingface/safetensors, README "Format".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/io/disk_file.h"

namespace ringside::engine {

// Header entry of one tensor.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data, after the header
  uint64_t end = 0;
};

// A mapped file. The constructor checks the whole header, so every tensor of an open file can be
// read.
// Thread safety: reading, from any thread.
class SafetensorsFile {
 public:
  // Throws: std::runtime_error naming the file, and the tensor if one is wrong: a header longer
  // than the file or 100 MB, not JSON, a repeated name, a dtype other than F64 F32 BF16 F16 I64 I32
  // U8 BOOL, a negative or overflowing shape, or offsets that do not match shape x size, overlap,
  // leave a gap or end before or after the file.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // In the order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // The header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The tensor of entries()[i] on the CPU. A view of the mapping, which it keeps alive, when the
  // bytes are aligned for the dtype; otherwise a copy. Writing to it never changes the file.
  // Throws: std::out_of_range when there is no such entry.
  at::Tensor tensor(std::size_t i) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<MappedFile> file_;
  uint64_t data_begin_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// One tensor to write. It is cast to `dtype` while writing, so there is no second copy of the
// model.
struct TensorToWrite {
  std::string name;
  at::Tensor tensor;  // any device, any strides
  at::ScalarType dtype = at::kFloat;
};

struct SafetensorsOptions {
  std::map<std::string, std::string> metadata;  // besides {"format": "pt"}
  // Called with all bytes of the file, in order, as they are written: for a checksum.
  std::function<void(std::span<const std::byte>)> on_bytes;
};

// A file that is written tensor by tensor, so that only one of them need be in memory.
// Thread safety: none.
class SafetensorsWriter {
 public:
  // Writes the header. entries: name, dtype and shape of the tensors that will come, in order;
  // their offsets are computed here. Falling element sizes keep each tensor aligned.
  // Throws: std::runtime_error on a repeated name or an unsupported dtype; std::system_error on a
  // write failure.
  SafetensorsWriter(std::filesystem::path path, std::vector<SafetensorsEntry> entries,
                    SafetensorsOptions options = {});

  // The next tensor, cast to its entry's dtype; any device, any strides.
  // Throws: std::runtime_error when its shape is not the entry's or no entry is left;
  // std::system_error on a write failure.
  void write(const at::Tensor& tensor);
  // Closes the file. Not durable.
  // Throws: std::runtime_error when a tensor has not come; std::system_error on a write failure.
  void close();

 private:
  void write_bytes(const void* data, std::size_t size);

  std::filesystem::path path_;
  std::vector<SafetensorsEntry> entries_;
  SafetensorsOptions options_;
  OutputFile file_;
  std::size_t next_ = 0;
};

// Writes a file with all tensors, ordered by falling element size. Neither atomic nor durable;
// AtomicDirectory provides both for a directory.
// Throws: as SafetensorsWriter.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors,
                       const SafetensorsOptions& options = {});

}  // namespace ringside::engine
