#include "sp/attention/lse_merge.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ringside::sp {
namespace {

constexpr int64_t kRowsPerTask = 64;

void check(const PartialAttention& whole, const PartialAttention& part, const PartPlace& place) {
  for (const at::Tensor* x : {&whole.out, &whole.lse, &part.out, &part.lse}) {
    TORCH_CHECK(x->scalar_type() == whole.out.scalar_type() &&
                    (x->scalar_type() == at::kFloat || x->scalar_type() == at::kDouble),
                "partial attention is merged in fp32 or fp64, got ", x->scalar_type(), " into ",
                whole.out.scalar_type());
  }
  TORCH_CHECK(whole.out.is_contiguous() && whole.lse.is_contiguous(),
              "merge into tensors that are not contiguous");
  const int64_t rows = part.out.size(1);
  TORCH_CHECK(part.out.size(0) == static_cast<int64_t>(place.begins.size()) &&
                  place.head_begin >= 0 &&
                  place.head_begin + part.out.size(2) <= whole.out.size(1) &&
                  part.out.size(3) == whole.out.size(2),
              "merge of a part ", part.out.sizes(), " at head ", place.head_begin, " into ",
              whole.out.sizes());
  for (const int64_t begin : place.begins) {
    TORCH_CHECK(begin >= 0 && begin + rows <= whole.out.size(0), "merge of rows ", begin, " to ",
                begin + rows, " into ", whole.out.size(0));
  }
}

template <class T>
void merge_one(T* out, T& lse, const T* part_out, T part_lse, int64_t head_dim) {
  constexpr T kEmpty = -std::numeric_limits<T>::infinity();
  const T highest = std::max(lse, part_lse);
  const T shift = highest == kEmpty ? T(0) : highest;  // avoids -inf - -inf, which is NaN
  const T weight = std::exp(lse - shift);
  const T part_weight = std::exp(part_lse - shift);
  const T sum = weight + part_weight;
  const T divisor = sum == T(0) ? T(1) : sum;
  const T a = weight / divisor;
  const T b = part_weight / divisor;
  for (int64_t d = 0; d < head_dim; ++d) {
    out[d] = out[d] * a + part_out[d] * b;
  }
  lse = std::log(sum) + shift;
}

// Calls visit(out row, lse, part's out row, part's lse) for each row and head of the part.
template <class T, class Visit>
void for_each_row(PartialAttention& whole, const PartialAttention& part, const PartPlace& place,
                  Visit visit) {
  const at::Tensor part_out = part.out.contiguous();
  const at::Tensor part_lse = part.lse.contiguous();
  const int64_t rows = part_out.size(1), heads = part_out.size(2), head_dim = part_out.size(3);
  const int64_t all_heads = whole.out.size(1);
  T* out = whole.out.mutable_data_ptr<T>();
  T* lse = whole.lse.mutable_data_ptr<T>();
  const T* from_out = part_out.const_data_ptr<T>();
  const T* from_lse = part_lse.const_data_ptr<T>();
  at::parallel_for(0, part_out.size(0) * rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t to = (place.begins[row / rows] + row % rows) * all_heads + place.head_begin;
      for (int64_t h = 0; h < heads; ++h) {
        visit(out + (to + h) * head_dim, lse[to + h], from_out + (row * heads + h) * head_dim,
              from_lse[row * heads + h], head_dim);
      }
    }
  });
}

template <class T>
void write_one(T* out, T& lse, const T* part_out, T part_lse, int64_t head_dim) {
  std::copy(part_out, part_out + head_dim, out);
  lse = part_lse;
}

}  // namespace

void merge_rows(PartialAttention& whole, const PartialAttention& part, const PartPlace& place) {
  check(whole, part, place);
  if (whole.out.scalar_type() == at::kDouble) {
    for_each_row<double>(whole, part, place, merge_one<double>);
  } else {
    for_each_row<float>(whole, part, place, merge_one<float>);
  }
}

void write_rows(PartialAttention& whole, const PartialAttention& part, const PartPlace& place) {
  check(whole, part, place);
  if (whole.out.scalar_type() == at::kDouble) {
    for_each_row<double>(whole, part, place, write_one<double>);
  } else {
    for_each_row<float>(whole, part, place, write_one<float>);
  }
}

}  // namespace ringside::sp
