#include "rl/checkpoint/checkpoint_reader.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::rl {
namespace {

// Whether an entry can have elements of a slice, by their places alone.
bool may_overlap(const PartReader::Entry& entry, const engine::NamedSlice& slice) {
  return entry.columns != slice.columns || (entry.begin < slice.end() && slice.begin < entry.end);
}

// Adds [begin, begin + size); one that follows the last one makes it longer.
void add_range(std::vector<sp::Range>& ranges, int64_t begin, int64_t size) {
  if (!ranges.empty() && ranges.back().end == begin) {
    ranges.back().end += size;
  } else {
    ranges.push_back({begin, begin + size});
  }
}

// "17", or "row 2, column 5" of a slice of columns: an element's place in the whole parameter.
std::string place_of(const engine::NamedSlice& slice, int64_t element) {
  const int64_t at = slice.begin + element;
  if (!slice.columns) {
    return std::to_string(at);
  }
  return "row " + std::to_string(at / slice.columns->size()) + ", column " +
         std::to_string(slice.columns->begin + at % slice.columns->size());
}

}  // namespace

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
  // Parts may have elements in common: ranks that did not know that they hold the same ones.
  const engine::ElementBlock wanted = engine::block_of(slice);
  std::vector<sp::Range> filled;
  for (const Piece& piece : pieces_.at(name)) {
    const PartReader::Entry& entry = piece.entry;
    if (!may_overlap(entry, slice)) {
      continue;
    }
    const engine::NamedSlice from{slice.name, slice.shape, entry.begin,
                                  parts_[piece.part].values(entry), entry.columns};
    engine::copy_shared(from, slice);
    for (const auto& shared : engine::shared_elements(engine::block_of(from), wanted)) {
      for (int64_t row = 0; row < shared.rows; ++row) {
        add_range(filled, shared.in_b + row * shared.stride_b, shared.width);
      }
    }
  }
  std::ranges::sort(filled, {}, &sp::Range::begin);
  int64_t next = 0;
  for (const sp::Range& range : filled) {
    if (range.begin > next) {
      break;
    }
    next = std::max(next, range.end);
  }
  if (next < slice.values.numel()) {
    throw std::runtime_error(dir_.string() + ": tensor " + name + " lacks element " +
                             place_of(slice, next) + "; expected " +
                             std::to_string(slice.values.numel()) + " elements from " +
                             place_of(slice, 0) + " on");
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
