#include "rl/checkpoint/checkpoint_reader.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::rl {

CheckpointReader::CheckpointReader(std::filesystem::path dir)
    : dir_(std::move(dir)), manifest_(read_manifest(dir_)) {
  const auto parts = static_cast<int64_t>(manifest_.parts.size());
  for (int64_t p = 0; p < parts; ++p) {
    parts_.emplace_back(dir_, manifest_.parts[p], PartId{manifest_.state.step, p, parts});
    const PartReader& part = parts_.back();
    for (const auto& entry : part.entries()) {
      const Stored stored{part.shapes().at(entry.name), entry.dtype};
      const auto [known, is_new] = tensors_.try_emplace(entry.name, stored);
      if (known->second.shape != stored.shape) {
        throw std::runtime_error(part.path().string() + ": parameter " + entry.name +
                                 " has another shape than in an earlier part");
      }
      pieces_[entry.name].push_back({static_cast<std::size_t>(p), entry});
    }
  }
  for (auto& [name, pieces] : pieces_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.entry.begin < b.entry.begin; });
  }
}

void CheckpointReader::verify(int64_t reader, int64_t readers) const {
  for (auto p = static_cast<std::size_t>(reader); p < parts_.size();
       p += static_cast<std::size_t>(readers)) {
    parts_[p].verify();
  }
}

void CheckpointReader::fill(const std::string& model,
                            const std::vector<engine::NamedSlice>& slices) const {
  const at::NoGradGuard no_grad;
  for (const engine::NamedSlice& slice : slices) {
    fill_slice(model + "/" + slice.name, slice);
  }
}

void CheckpointReader::fill_slice(const std::string& name, const engine::NamedSlice& slice) const {
  const auto stored = tensors_.find(name);
  if (stored == tensors_.end()) {
    throw std::runtime_error(dir_.string() + " lacks tensor " + name);
  }
  if (stored->second.shape != slice.shape) {
    throw std::runtime_error(dir_.string() + ": tensor " + name + " has shape " +
                             c10::str(at::IntArrayRef(stored->second.shape)) + ", the model's is " +
                             c10::str(at::IntArrayRef(slice.shape)));
  }
  int64_t filled = slice.begin;
  for (const Piece& piece : pieces_.at(name)) {
    const int64_t end = std::min(piece.entry.end, slice.end());
    if (piece.entry.begin > filled || filled >= slice.end()) {
      break;
    }
    if (end <= filled) {
      continue;
    }
    slice.values.narrow(0, filled - slice.begin, end - filled)
        .copy_(parts_[piece.part]
                   .values(piece.entry)
                   .narrow(0, filled - piece.entry.begin, end - filled));
    filled = end;
  }
  if (filled < slice.end()) {
    throw std::runtime_error(dir_.string() + ": tensor " + name + " lacks its elements from " +
                             std::to_string(filled) + " on; expected " +
                             std::to_string(slice.begin) + " to " + std::to_string(slice.end()));
  }
}

at::Tensor CheckpointReader::tensor(const std::string& name) const {
  const auto stored = tensors_.find(name);
  if (stored == tensors_.end()) {
    throw std::runtime_error(dir_.string() + " lacks tensor " + name);
  }
  at::Tensor values = at::empty(stored->second.shape, stored->second.dtype);
  fill_slice(name, engine::whole_slice(name, values));
  return values;
}

}  // namespace ringside::rl
