// Weight files of a Hugging Face directory, written tensor by tensor: for models that are never
// whole in one process's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"

namespace ringside::engine {

// Thread safety: none.
class WeightStream {
 public:
  // entries: name, dtype and shape of the tensors that will come, in order, at least one. Removes
  // weight files that are there. max_shard_bytes: most bytes of tensors in one file; larger models
  // are sharded and indexed, and a single larger tensor gets its own file.
  // Throws: c10::Error on a max_shard_bytes below 1 or no entries; as remove_weight_files().
  WeightStream(std::filesystem::path dir, std::vector<SafetensorsEntry> entries,
               int64_t max_shard_bytes);

  // The next tensor, cast to its entry's dtype; any device.
  // Throws: as SafetensorsWriter and its write().
  void write(const at::Tensor& tensor);
  // Writes the index, if the weights are sharded. Neither atomic nor durable.
  // Throws: as SafetensorsWriter::close.
  void close();

 private:
  std::string shard_name(std::size_t shard) const;

  std::filesystem::path dir_;
  std::vector<std::vector<SafetensorsEntry>> shards_;
  std::optional<SafetensorsWriter> file_;
  std::size_t shard_ = 0;  // of the next tensor, and its place there
  std::size_t place_ = 0;
};

}  // namespace ringside::engine
