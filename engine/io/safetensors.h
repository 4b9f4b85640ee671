// The safetensors format: 8 bytes of header length (little-endian), a JSON header {name: {dtype,
// shape, data_offsets}}, then the tensors' bytes. Format:
// https://github.com/huggingface/safetensors, README "Format".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/io/disk_file.h"

namespace ringside::engine {

// One tensor of a file, as its header describes it.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data, after the header
  uint64_t end = 0;
};

// A mapped file. The constructor checks the whole header, so a file that opens can be read. Reading
// is thread-safe.
class SafetensorsFile {
 public:
  // Throws std::runtime_error that names the file, and the tensor where one is at fault: header
  // longer than the file or 100 MB, not JSON, a name twice, a dtype that is none of F64 F32 BF16
  // F16 I64 I32 U8 BOOL, a negative or overflowing shape, offsets that disagree with shape x size,
  // overlap, leave a hole or end elsewhere than the file.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // In the order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // The header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The tensor of entries()[i] on the CPU. It views the mapping (and keeps it alive) where the
  // bytes are aligned for its dtype, and is a copy otherwise; writing to it never reaches the file.
  at::Tensor tensor(std::size_t i) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<MappedFile> file_;
  uint64_t data_begin_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// One tensor to write, cast to `dtype` on the way, so that a file never needs a second copy of a
// whole model.
struct TensorToWrite {
  std::string name;
  at::Tensor tensor;  // any device, any strides
  at::ScalarType dtype = at::kFloat;
};

// Writes a file with metadata {"format": "pt"}; tensors are laid out by falling element size, so
// that each is aligned. Not atomic and not durable (AtomicDirectory makes whole directories so).
// Throws std::runtime_error on a name that comes twice or a dtype the format lacks here,
// std::system_error on a write failure.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors);

}  // namespace ringside::engine
