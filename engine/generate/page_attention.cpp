#include "engine/generate/page_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "engine/generate/cached_products.h"
#include "engine/generate/page_pool.h"
#include "engine/generate/row_kernel.h"

namespace ringside::engine {
namespace {

bool reads_in_place(const PagedKeys& cache) {
  const at::ScalarType dtype = cache.keys_PKDt.scalar_type();
  return cache.keys_PKDt.is_cpu() && cache.values_PKtD.defined() &&
         (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble);
}

template <class Element>
Element* elements(const at::Tensor& x) {
  return static_cast<Element*>(x.mutable_data_ptr());
}
template <class Element>
const Element* const_elements(const at::Tensor& x) {
  return static_cast<const Element*>(x.const_data_ptr());
}

// One row after another with all its heads, which lie side by side in a page. Rows that share a
// prompt follow each other, and find its pages in the processor's cache.
template <class Element, class Sum>
at::Tensor attend_in_place(const AttentionSpec& spec, const RowPages& rows, const PagedKeys& cache,
                           const at::Tensor& q_BHD, const at::Tensor& k_BKD,
                           const at::Tensor& v_BKD) {
  const int64_t batch = q_BHD.size(0), d = q_BHD.size(2), kv_heads = k_BKD.size(1);
  const int64_t queries = q_BHD.size(1) / kv_heads;
  const at::Tensor q = q_BHD.contiguous(), k = k_BKD.contiguous(), v = v_BKD.contiguous();
  at::Tensor out = at::empty_like(q);
  const at::Tensor sinks = spec.sinks_H.defined()
                               ? spec.sinks_H.to(c10::CppTypeToScalarType<Sum>::value).contiguous()
                               : at::Tensor();
  const auto* begin = rows.begin_B.const_data_ptr<int64_t>();
  const auto* end = rows.end_B.const_data_ptr<int64_t>();
  const int64_t longest = batch == 0 ? 0 : *std::max_element(end, end + batch);
  at::parallel_for(0, batch * kv_heads, 1, [&](int64_t from, int64_t to) {
    std::vector<Sum> memory(row_memory(d, longest));
    for (int64_t task = from; task < to; ++task) {
      const int64_t b = task / kv_heads, head = task % kv_heads;
      const int64_t kv = (b * kv_heads + head) * d, query = kv * queries;
      attend_row(
          RowOfHead<Element, Sum>{
              const_elements<Element>(q) + query, const_elements<Element>(k) + kv,
              const_elements<Element>(v) + kv,
              elements<Element>(cache.keys_PKDt) + head * d * kPageTokens,
              elements<Element>(cache.values_PKtD) + head * d * kPageTokens,
              kv_heads * d * kPageTokens,
              rows.pages_BN.const_data_ptr<int64_t>() + b * rows.pages_BN.size(1), begin[b], end[b],
              sinks.defined() ? sinks.const_data_ptr<Sum>() + head * queries : nullptr,
              static_cast<Sum>(spec.softmax_scale), queries, d, elements<Element>(out) + query},
          memory.data());
    }
  });
  return out;
}

// The rows' pages, side by side: keys [B K, D, N t], values [B K, N t, D].
at::Tensor gathered_keys(const at::Tensor& keys_PKDt, const at::Tensor& pages_BN) {
  const int64_t rows = pages_BN.size(0), pages = pages_BN.size(1);
  return keys_PKDt.index_select(0, pages_BN.flatten())
      .view({rows, pages, keys_PKDt.size(1), keys_PKDt.size(2), kPageTokens})
      .permute({0, 2, 3, 1, 4})
      .reshape({rows * keys_PKDt.size(1), keys_PKDt.size(2), pages * kPageTokens});
}

at::Tensor gathered_values(const at::Tensor& values_PKtD, const at::Tensor& pages_BN) {
  const int64_t rows = pages_BN.size(0), pages = pages_BN.size(1);
  return values_PKtD.index_select(0, pages_BN.flatten())
      .view({rows, pages, values_PKtD.size(1), kPageTokens, values_PKtD.size(3)})
      .transpose(1, 2)
      .reshape({rows * values_PKtD.size(1), pages * kPageTokens, values_PKtD.size(3)});
}

// Writes the new keys and values into the last place of each row.
void write_last(const RowPages& rows, const PagedKeys& cache, const at::Tensor& k_BKD,
                const at::Tensor& v_BKD) {
  const at::Tensor place = rows.end_B - 1;
  const at::Tensor page =
      rows.pages_BN.gather(1, at::floor_divide(place, kPageTokens).unsqueeze(1)).squeeze(1);
  const at::Tensor offset = place.remainder(kPageTokens);
  at::Tensor keys_PKDt = cache.keys_PKDt, values_PKtD = cache.values_PKtD;
  keys_PKDt.index_put_({page, at::indexing::Slice(), at::indexing::Slice(), offset}, k_BKD);
  if (values_PKtD.defined()) {
    values_PKtD.index_put_({page, at::indexing::Slice(), offset}, v_BKD);
  }
}

at::Tensor attend_gathered(const AttentionSpec& spec, const RowPages& rows, const PagedKeys& cache,
                           const at::Tensor& q_BHD) {
  const int64_t batch = q_BHD.size(0), d = q_BHD.size(2), kv_heads = cache.keys_PKDt.size(1);
  const at::Tensor keys = gathered_keys(cache.keys_PKDt, rows.pages_BN);
  const at::Tensor values = cache.values_PKtD.defined()
                                ? gathered_values(cache.values_PKtD, rows.pages_BN)
                                : keys.transpose(1, 2);
  const at::Tensor q = q_BHD.reshape({batch * kv_heads, q_BHD.size(1) / kv_heads, d});
  const at::Tensor scores = scaled_products(q, keys, spec.softmax_scale);
  const at::Tensor place = at::arange(keys.size(2), rows.end_B.options());
  const at::Tensor unseen_B1N =
      at::logical_or(place < rows.begin_B.unsqueeze(1), place >= rows.end_B.unsqueeze(1))
          .unsqueeze(1);
  const at::Tensor of_rows = scores.view({batch, -1, keys.size(2)});
  of_rows.masked_fill_(unseen_B1N, -std::numeric_limits<double>::infinity());
  const at::Tensor probs = softmax_with_sinks(of_rows, spec.sinks_H);
  return weighted_values(probs.view(scores.sizes()), values).view(q_BHD.sizes());
}

}  // namespace

at::Tensor attend_pages(const AttentionSpec& spec, const RowPages& rows, const PagedKeys& cache,
                        const at::Tensor& q_BHD, const at::Tensor& k_BKD, const at::Tensor& v_BKD) {
  if (!reads_in_place(cache)) {
    write_last(rows, cache, k_BKD, v_BKD);
    return attend_gathered(spec, rows, cache, q_BHD);
  }
  switch (q_BHD.scalar_type()) {
    case at::kFloat:
      return attend_in_place<float, float>(spec, rows, cache, q_BHD, k_BKD, v_BKD);
    case at::kDouble:
      return attend_in_place<double, double>(spec, rows, cache, q_BHD, k_BKD, v_BKD);
    default:
      return attend_in_place<uint16_t, float>(spec, rows, cache, q_BHD, k_BKD, v_BKD);
  }
}

}  // namespace ringside::engine
