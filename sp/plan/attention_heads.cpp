#include "sp/plan/attention_heads.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::sp {

HeadSplit split_over_ulysses(const HeadShape& heads, int64_t ulysses_size) {
  HeadSplit split = split_heads(heads, ulysses_size);
  const int64_t own = heads.query_heads().size();
  if (own > 0 && own < ulysses_size) {
    throw std::invalid_argument("attention: ulysses size " + std::to_string(ulysses_size) +
                                " exceeds the " + std::to_string(own) + " query heads" +
                                (heads.part ? " of a tensor rank" : "") +
                                "; use a ring axis for the rest");
  }
  return split;
}

std::vector<HeadChunk> chunk_heads(const HeadShape& heads, Range query_heads, Range kv_heads,
                                   int64_t stride) {
  const int64_t group = heads.group_size();
  // In groups of the layer's heads, of which the part begins with this one.
  const int64_t first = heads.query_heads().begin % group;
  const Range queries{first + query_heads.begin, first + query_heads.end};
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
        std::min(queries.end, (kv + 1) * group) - std::max(queries.begin, kv * group);
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
