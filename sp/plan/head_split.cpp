#include "sp/plan/head_split.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::sp {

HeadSplit split_heads(const HeadShape& heads, int64_t ulysses_size) {
  if (heads.num_query_heads < 1 || heads.num_kv_heads < 1 || heads.head_dim < 1 ||
      heads.num_query_heads % heads.num_kv_heads != 0) {
    throw std::invalid_argument(
        "attention: query heads must be a positive multiple of key/value heads, got " +
        std::to_string(heads.num_query_heads) + " and " + std::to_string(heads.num_kv_heads) +
        " of dimension " + std::to_string(heads.head_dim));
  }
  if (heads.num_query_heads < ulysses_size) {
    throw std::invalid_argument("attention: ulysses size " + std::to_string(ulysses_size) +
                                " exceeds the " + std::to_string(heads.num_query_heads) +
                                " query heads; use a ring axis for the rest");
  }
  const int64_t group = heads.num_query_heads / heads.num_kv_heads;
  HeadSplit split;
  for (int64_t u = 0; u < ulysses_size; ++u) {
    const Range q = even_part(heads.num_query_heads, ulysses_size, u);
    const Range kv{q.begin / group, (q.end - 1) / group + 1};
    split.kv_heads_shared =
        split.kv_heads_shared || (u > 0 && split.kv_heads_of.back().end > kv.begin);
    split.query_heads_of.push_back(q);
    split.kv_heads_of.push_back(kv);
  }
  return split;
}

std::vector<HeadChunk> chunk_heads(const HeadShape& heads, Range query_heads, Range kv_heads,
                                   int64_t stride) {
  const int64_t group = heads.num_query_heads / heads.num_kv_heads;
  std::vector<HeadChunk> chunks;
  int64_t query_begin = 0;
  for (int64_t kv = kv_heads.begin; kv < kv_heads.end; ++kv) {
    const int64_t local = kv - kv_heads.begin;
    if (local % stride == 0) {
      chunks.push_back({{local, local}, {}});
    }
    HeadChunk& chunk = chunks.back();
    chunk.kv_heads.end = local + 1;
    const int64_t users =
        std::min(query_heads.end, (kv + 1) * group) - std::max(query_heads.begin, kv * group);
    const bool same = !chunk.groups.empty() && chunk.groups.back().query_heads.size() ==
                                                   users * chunk.groups.back().kv_heads.size();
    if (same) {
      chunk.groups.back().query_heads.end += users;
      chunk.groups.back().kv_heads.end += 1;
    } else {
      chunk.groups.push_back({{query_begin, query_begin + users}, {local, local + 1}});
    }
    query_begin += users;
  }
  return chunks;
}

}  // namespace ringside::sp
