// Published weights on disk: a Hugging Face directory per version, for inference servers that load
// weights from disk and for recomputing log-probs later.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/io/hf_directory.h"
#include "engine/models/decoder.h"

namespace ringside::rl {

class VersionDirectories {
 public:
  // keep: number of newest versions that stay on disk, 0 = all. storage: dtype on disk, kFloat,
  // kDouble or kBFloat16. copy_from: of engine::SaveOptions.
  VersionDirectories(std::filesystem::path root, int64_t keep, at::ScalarType storage,
                     std::filesystem::path copy_from);

  // ROOT/e<trainer_term>-v<version>, zero-padded so that names sort by age.
  std::filesystem::path path_of(int64_t trainer_term, int64_t version) const;

  // Writes the version atomically (under another name, renamed when durable), then removes the
  // oldest versions beyond `keep`. Returns its path.
  // Not collective: the decoder is whole on this rank.
  // Blocks: on the disk.
  // Throws: std::runtime_error or std::system_error on a write failure.
  std::filesystem::path write(const engine::Decoder& decoder, int64_t trainer_term,
                              int64_t version) const;
  // The same from a copy of the parameters in the decoder's order, so that training can continue
  // meanwhile. Constant parts of a vision tower may be left out: they are read from copy_from.
  std::filesystem::path write(const engine::ModelConfig& config,
                              const std::vector<engine::TensorToWrite>& tensors,
                              int64_t trainer_term, int64_t version) const;
  // The same for adapters alone: a PEFT directory. base_model: as of engine::save_adapters. Not
  // collective: adapters are whole on every rank.
  std::filesystem::path write_adapters(const engine::Adapters& adapters,
                                       const std::string& base_model, int64_t trainer_term,
                                       int64_t version) const;
  // The same of several, each in a folder of its name.
  using NamedAdapters = std::vector<std::pair<std::string, const engine::Adapters*>>;
  std::filesystem::path write_adapters(const NamedAdapters& adapters, const std::string& base_model,
                                       int64_t trainer_term, int64_t version) const;

 private:
  std::filesystem::path write(int64_t trainer_term, int64_t version,
                              const std::function<void(const std::filesystem::path&)>& save) const;
  std::vector<engine::TensorToWrite> with_constants(
      const engine::ModelConfig& config, std::vector<engine::TensorToWrite> tensors) const;
  engine::SaveOptions save_options() const;
  void prune() const;

  std::filesystem::path root_;
  int64_t keep_;
  at::ScalarType storage_;
  std::filesystem::path copy_from_;
};

}  // namespace ringside::rl
