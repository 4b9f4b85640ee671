#include "engine/io/weight_stream.h"

#include <ATen/ATen.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "engine/io/disk_file.h"
#include "engine/io/weight_files.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

int64_t entry_bytes(const SafetensorsEntry& entry) {
  return c10::multiply_integers(entry.shape) * static_cast<int64_t>(c10::elementSize(entry.dtype));
}

}  // namespace

WeightStream::WeightStream(fs::path dir, std::vector<SafetensorsEntry> entries,
                           int64_t max_shard_bytes)
    : dir_(std::move(dir)), shards_(1) {
  TORCH_CHECK(max_shard_bytes > 0, "max_shard_bytes is ", max_shard_bytes, ", expected at least 1");
  TORCH_CHECK(!entries.empty(), dir_.string(), ": no tensors to write");
  int64_t used = 0;
  for (SafetensorsEntry& entry : entries) {
    const int64_t bytes = entry_bytes(entry);
    if (used > 0 && used + bytes > max_shard_bytes) {
      shards_.emplace_back();
      used = 0;
    }
    used += bytes;
    shards_.back().push_back(std::move(entry));
  }
  remove_weight_files(dir_);
}

std::string WeightStream::shard_name(std::size_t shard) const {
  if (shards_.size() == 1) {
    return std::string(kSingleWeightFile);
  }
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", shard + 1,
                shards_.size());
  return name.data();
}

void WeightStream::write(const at::Tensor& tensor) {
  if (shard_ == shards_.size()) {
    throw std::runtime_error(dir_.string() + ": all tensors of the model are written already");
  }
  if (!file_) {
    file_.emplace(dir_ / shard_name(shard_), shards_[shard_]);
  }
  file_->write(tensor);
  if (++place_ == shards_[shard_].size()) {
    file_->close();
    file_.reset();
    ++shard_;
    place_ = 0;
  }
}

void WeightStream::close() {
  if (shard_ != shards_.size()) {
    throw std::runtime_error(dir_.string() + ": tensor '" + shards_[shard_][place_].name +
                             "' was not written");
  }
  if (shards_.size() == 1) {
    return;
  }
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  int64_t total = 0;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    for (const SafetensorsEntry& entry : shards_[s]) {
      weight_map[entry.name] = shard_name(s);
      total += entry_bytes(entry);
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}},
                                        {"weight_map", weight_map}};
  write_text(dir_ / kWeightIndexFile, index.dump(2) + "\n");
}

}  // namespace ringside::engine
