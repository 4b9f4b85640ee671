#include "sp/layout/sequence_layout.h"

#include <string>
#include <utility>

namespace ringside::sp {

SequenceLayout::SequenceLayout(SegmentForest forest, int64_t ring_size, int64_t ulysses_size,
                               Placement placement)
    : forest_(std::move(forest)), ulysses_size_(ulysses_size) {
  if (ring_size < 1 || ulysses_size < 1) {
    throw std::invalid_argument(
        "SequenceLayout: ring_size and ulysses_size must be at least 1, got " +
        std::to_string(ring_size) + " and " + std::to_string(ulysses_size));
  }
  shares_ = place(forest_, ring_size, placement);
  for (const auto& share : shares_) {
    int64_t tokens = 0;
    for (const TokenRun& run : share) {
      tokens += run.offsets.size();
    }
    share_tokens_.push_back(tokens);
  }
}

SequenceLayout::SequenceLayout(const std::vector<int64_t>& document_lengths, int64_t ring_size,
                               int64_t ulysses_size)
    : SequenceLayout(SegmentForest::of_documents(document_lengths), ring_size, ulysses_size) {}

Range SequenceLayout::ulysses_part(int64_t ring_rank, int64_t ulysses_rank) const {
  return even_part(ring_share_tokens(ring_rank), ulysses_size_, ulysses_rank);
}

int64_t SequenceLayout::num_local_tokens(int64_t sp_rank) const {
  return ulysses_part(sp_rank / ulysses_size_, sp_rank % ulysses_size_).size();
}

std::vector<int64_t> SequenceLayout::packed_indices(int64_t sp_rank) const {
  const int64_t ring_rank = sp_rank / ulysses_size_;
  const Range part = ulysses_part(ring_rank, sp_rank % ulysses_size_);
  std::vector<int64_t> indices;
  indices.reserve(part.size());
  int64_t share_index = 0;
  for (const TokenRun& run : ring_share(ring_rank)) {
    const Range whole = packed(run);
    for (int64_t i = whole.begin; i < whole.end; ++i, ++share_index) {
      if (share_index >= part.begin && share_index < part.end) {
        indices.push_back(i);
      }
    }
  }
  return indices;
}

std::vector<int64_t> SequenceLayout::share_positions(int64_t ring_rank) const {
  std::vector<int64_t> positions;
  positions.reserve(ring_share_tokens(ring_rank));
  for (const TokenRun& run : ring_share(ring_rank)) {
    for (int64_t i = run.offsets.begin; i < run.offsets.end; ++i) {
      positions.push_back(forest_.first_position(run.segment) + i);
    }
  }
  return positions;
}

std::vector<int64_t> SequenceLayout::positions(int64_t sp_rank) const {
  const int64_t ring_rank = sp_rank / ulysses_size_;
  const Range part = ulysses_part(ring_rank, sp_rank % ulysses_size_);
  const auto share = share_positions(ring_rank);
  return {share.begin() + part.begin, share.begin() + part.end};
}

std::vector<int64_t> SequenceLayout::local_index_of_packed(int64_t sp_rank) const {
  std::vector<int64_t> local(num_tokens(), -1);
  const auto indices = packed_indices(sp_rank);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    local[indices[i]] = static_cast<int64_t>(i);
  }
  return local;
}

void SequenceLayout::check_size(int64_t got, int64_t expected, const char* what) {
  if (got != expected) {
    throw std::invalid_argument(std::string("SequenceLayout: ") + what + " has size " +
                                std::to_string(got) + ", expected " + std::to_string(expected));
  }
}

}  // namespace ringside::sp
