#include "sp/layout/sequence_layout.h"

#include <string>
#include <utility>

namespace ringside::sp {
namespace {

// Bounds of the 2R chunks of one document. `first_larger` rotates which chunks take the remainder.
std::vector<Range> zigzag_chunks(int64_t length, int64_t num_chunks, int64_t first_larger) {
  const int64_t base = length / num_chunks;
  const int64_t remainder = length % num_chunks;
  std::vector<Range> chunks;
  int64_t begin = 0;
  for (int64_t c = 0; c < num_chunks; ++c) {
    const bool larger = (c - first_larger + num_chunks) % num_chunks < remainder;
    const int64_t end = begin + base + (larger ? 1 : 0);
    chunks.push_back({begin, end});
    begin = end;
  }
  return chunks;
}

void append_run(std::vector<TokenRun>& share, int64_t document, Range positions) {
  if (positions.empty()) {
    return;
  }
  if (!share.empty() && share.back().document == document &&
      share.back().positions.end == positions.begin) {
    share.back().positions.end = positions.end;
    return;
  }
  share.push_back({document, positions});
}

}  // namespace

SequenceLayout::SequenceLayout(std::vector<int64_t> document_lengths, int64_t ring_size,
                               int64_t ulysses_size)
    : lengths_(std::move(document_lengths)), cu_seqlens_{0}, ulysses_size_(ulysses_size) {
  if (ring_size < 1 || ulysses_size < 1) {
    throw std::invalid_argument("SequenceLayout: ring_size and ulysses_size must be at least 1, got " +
                                std::to_string(ring_size) + " and " + std::to_string(ulysses_size));
  }
  shares_.resize(ring_size);
  share_tokens_.assign(ring_size, 0);
  const int64_t num_chunks = 2 * ring_size;
  int64_t first_larger = 0;
  for (int64_t document = 0; document < num_documents(); ++document) {
    const int64_t length = lengths_[document];
    if (length < 0) {
      throw std::invalid_argument("SequenceLayout: document " + std::to_string(document) +
                                  " has length " + std::to_string(length));
    }
    cu_seqlens_.push_back(cu_seqlens_.back() + length);
    const auto chunks = zigzag_chunks(length, num_chunks, first_larger);
    first_larger = (first_larger + length) % num_chunks;
    for (int64_t r = 0; r < ring_size; ++r) {
      for (const Range& chunk : {chunks[r], chunks[num_chunks - 1 - r]}) {
        append_run(shares_[r], document, chunk);
        share_tokens_[r] += chunk.size();
      }
    }
  }
}

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
    for (int64_t p = run.positions.begin; p < run.positions.end; ++p, ++share_index) {
      if (share_index >= part.begin && share_index < part.end) {
        indices.push_back(cu_seqlens_[run.document] + p);
      }
    }
  }
  return indices;
}

std::vector<int64_t> SequenceLayout::positions(int64_t sp_rank) const {
  std::vector<int64_t> positions(num_tokens());
  for (int64_t document = 0; document < num_documents(); ++document) {
    for (int64_t p = 0; p < lengths_[document]; ++p) {
      positions[cu_seqlens_[document] + p] = p;
    }
  }
  return shard<int64_t>(positions, sp_rank);
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
