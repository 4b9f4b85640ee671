// Tensors of the directory that a model began with which are written again as they are: those of
// its layers that predict further tokens, but for what the model trains of them. They are copied
// from file to file and are on no device.
#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "engine/io/weight_files.h"
#include "engine/io/weight_stream.h"

namespace ringside::engine {

// Thread safety: none.
class KeptTensors {
 public:
  // Nothing is kept.
  KeptTensors() = default;
  // Those of a model in `dir`; none if that is empty or has no weight files. storage: the dtype of
  // tensors that are packed there, which are unpacked. The others keep their dtype.
  // Throws: as WeightFiles.
  KeptTensors(const std::filesystem::path& dir, const ModelConfig& config, at::ScalarType storage);

  // In the order of write().
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // Gives all of them to a stream whose next entries they are.
  // Throws: as WeightFiles::read() and WeightStream::write().
  void write(WeightStream& stream) const;
  // The model as config.json describes it: one without these layers does not announce them.
  ModelConfig described(ModelConfig config) const;

 private:
  std::optional<WeightFiles> files_;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace ringside::engine
