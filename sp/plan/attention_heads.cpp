#include "sp/plan/attention_heads.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::sp {

HeadSplit split_over_ulysses(const HeadShape& heads, int64_t ulysses_size) {
  HeadSplit split = split_heads(heads, ulysses_size);
  if (heads.num_query_heads < ulysses_size) {
    throw std::invalid_argument("attention: ulysses size " + std::to_string(ulysses_size) +
                                " exceeds the " + std::to_string(heads.num_query_heads) +
                                " query heads; use a ring axis for the rest");
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
