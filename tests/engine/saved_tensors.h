// Small models and the tensors of their directories, which tests change.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <vector>

#include "engine/io/hf_directory.h"
#include "engine/io/safetensors.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace ringside::test {

inline engine::ModelConfig small_config(bool tied) {
  engine::ModelConfig config = tiny_config();
  config.tie_word_embeddings = tied;
  config.eos_token_ids = {1};
  return config;
}

inline engine::Decoder random_decoder(bool tied, at::ScalarType dtype = at::kFloat) {
  return random_decoder(small_config(tied), dtype, /*seed=*/5, /*std=*/0.3);
}

// The tensors of a saved model, for tests to change and write back.
inline std::vector<engine::TensorToWrite> read_tensors(const std::filesystem::path& file) {
  const engine::SafetensorsFile source(file);
  std::vector<engine::TensorToWrite> tensors;
  for (std::size_t i = 0; i < source.entries().size(); ++i) {
    tensors.push_back(
        {source.entries()[i].name, source.tensor(i).clone(), source.entries()[i].dtype});
  }
  return tensors;
}

// Saves a model, lets `change` edit its tensors, and loads.
template <class Change>
void load_changed(bool tied, const Change& change) {
  const TemporaryDirectory dir;
  engine::save_decoder(random_decoder(tied), dir.path(), at::kFloat);
  const std::filesystem::path file = dir.path() / "model.safetensors";
  std::vector<engine::TensorToWrite> tensors = read_tensors(file);
  change(tensors);
  engine::write_safetensors(file, tensors);
  engine::load_decoder(dir.path(), at::kFloat);
}

}  // namespace ringside::test
