#include "sp/heads/head_split.h"

#include <stdexcept>
#include <string>

namespace ringside::sp {

Range HeadShape::kv_heads() const {
  if (!part) {
    return {0, num_kv_heads};
  }
  const Range own = *part;
  const int64_t begin = own.begin / group_size();
  return {begin, own.empty() ? begin : (own.end - 1) / group_size() + 1};
}

std::vector<int64_t> HeadSplit::kv_head_of(int64_t rank) const {
  std::vector<int64_t> heads;
  const Range own = query_heads_of.at(rank);
  for (int64_t head = own.begin; head < own.end; ++head) {
    heads.push_back((first_in_group + head) / group_size - kv_heads_of[rank].begin);
  }
  return heads;
}

HeadSplit split_heads(const HeadShape& heads, int64_t ranks) {
  if (heads.num_query_heads < 1 || heads.num_kv_heads < 1 || heads.head_dim < 1 ||
      heads.num_query_heads % heads.num_kv_heads != 0) {
    throw std::invalid_argument(
        "attention: query heads must be a positive multiple of key/value heads, got " +
        std::to_string(heads.num_query_heads) + " and " + std::to_string(heads.num_kv_heads) +
        " of dimension " + std::to_string(heads.head_dim));
  }
  if (ranks < 1) {
    throw std::invalid_argument("attention: heads split over " + std::to_string(ranks) + " ranks");
  }
  const Range part = heads.query_heads();
  if (part.begin < 0 || part.begin > part.end || part.end > heads.num_query_heads) {
    throw std::invalid_argument("attention: query heads " + std::to_string(part.begin) + " to " +
                                std::to_string(part.end) + " of " +
                                std::to_string(heads.num_query_heads));
  }
  HeadSplit split;
  split.group_size = heads.group_size();
  split.first_in_group = part.begin % split.group_size;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Range q = even_part(part.size(), ranks, rank);
    // Ranks without a query head are the last ones; their range is empty and at the end.
    const int64_t begin = (split.first_in_group + q.begin) / split.group_size;
    const Range kv{begin,
                   q.empty() ? begin : (split.first_in_group + q.end - 1) / split.group_size + 1};
    split.kv_heads_shared =
        split.kv_heads_shared || (rank > 0 && split.kv_heads_of.back().end > kv.begin);
    split.query_heads_of.push_back(q);
    split.kv_heads_of.push_back(kv);
  }
  return split;
}

HeadShape part_of_heads(const HeadShape& heads, int64_t ranks, int64_t rank) {
  HeadShape part = heads;
  part.part = split_heads(heads, ranks).query_heads_of.at(rank);
  return part;
}

}  // namespace ringside::sp
