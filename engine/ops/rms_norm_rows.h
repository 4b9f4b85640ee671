// Row functions of a norm and its gradient; rows.h has the letters and how lanes share a row.
#pragma once

#include "engine/ops/rows.h"

namespace ringside::engine::rows {

// 1 / sqrt(mean_square + eps), with the sum in Acc.
template <class Acc>
C10_HOST_DEVICE inline Acc reciprocal_root(Acc mean_square, double eps) {
  return Acc(1) / std::sqrt(mean_square + static_cast<Acc>(eps));
}

// What a norm multiplies by.
template <class Acc, class T>
C10_HOST_DEVICE inline Acc norm_factor(T weight, bool plus_one) {
  return plus_one ? Acc(1) + static_cast<Acc>(weight) : static_cast<Acc>(weight);
}

// x * rstd rounded to T, times the weight, not rounded again. With plus_one x * rstd * (1 +
// weight), not rounded at all.
template <class T, class Acc>
C10_HOST_DEVICE inline Wide<T> normed(T x, Acc rstd, T weight, bool plus_one) {
  if (plus_one) {
    return static_cast<Wide<T>>(static_cast<Acc>(x) * rstd * norm_factor<Acc>(weight, true));
  }
  const T rounded = static_cast<T>(static_cast<Acc>(x) * rstd);
  return static_cast<Wide<T>>(rounded) * static_cast<Wide<T>>(weight);
}

// Norm of one row, of x or of sum = x + branch.
template <class T, class Acc, int kWidth>
struct NormRow {
  const T* x;
  const T* branch;  // nullptr: the row is x
  const T* weight;
  T* sum;  // written where there is a branch
  T* y;
  int64_t size;
  bool plus_one = false;

  // First phase: this lane's sum of the row's squares. Writes its part of `sum`.
  C10_HOST_DEVICE Acc squares(Lane lane) const {
    Acc total = 0;
    for_each_pack<kWidth>(size, lane, [&](int64_t i) {
      Pack<T, kWidth> row = load<kWidth>(x + i);
      if (branch != nullptr) {
        const Pack<T, kWidth> added = load<kWidth>(branch + i);
        for (int w = 0; w < kWidth; ++w) {
          row.x[w] =
              static_cast<T>(static_cast<Wide<T>>(row.x[w]) + static_cast<Wide<T>>(added.x[w]));
        }
        store<kWidth>(sum + i, row);
      }
      for (int w = 0; w < kWidth; ++w) {
        const Acc value = static_cast<Acc>(row.x[w]);
        total += value * value;
      }
    });
    return total;
  }

  // Second phase: this lane's part of y.
  C10_HOST_DEVICE void write(Lane lane, Acc rstd) const {
    const T* from = branch != nullptr ? sum : x;
    for_each_pack<kWidth>(size, lane, [&](int64_t i) {
      Pack<T, kWidth> row = load<kWidth>(from + i);
      const Pack<T, kWidth> scale = load<kWidth>(weight + i);
      for (int w = 0; w < kWidth; ++w) {
        row.x[w] = static_cast<T>(normed(row.x[w], rstd, scale.x[w], plus_one));
      }
      store<kWidth>(y + i, row);
    });
  }
};

// With n = x * rstd and g = dy * w: dx = rstd * (g - n * mean(g * n)) + d_sum. Adds dy * n to
// d_weight, of which a lane touches the elements of its own packs only.
template <class T, class Acc, int kWidth>
struct NormGradRow {
  const T* dy;
  const T* x;
  const T* weight;
  const T* d_sum;  // nullptr: nothing is added
  T* dx;
  Acc* d_weight;
  int64_t size;
  bool plus_one = false;

  // First phase: this lane's sum of g * n; adds to d_weight.
  C10_HOST_DEVICE Acc products(Lane lane, Acc rstd) const {
    Acc total = 0;
    for_each_pack<kWidth>(size, lane, [&](int64_t i) {
      const Pack<T, kWidth> g = load<kWidth>(dy + i), row = load<kWidth>(x + i);
      const Pack<T, kWidth> scale = load<kWidth>(weight + i);
      for (int w = 0; w < kWidth; ++w) {
        const Acc product = static_cast<Acc>(g.x[w]) * (static_cast<Acc>(row.x[w]) * rstd);
        d_weight[i + w] += product;
        total += product * norm_factor<Acc>(scale.x[w], plus_one);
      }
    });
    return total;
  }

  // Second phase: this lane's part of dx. mean: of g * n over the row.
  C10_HOST_DEVICE void write(Lane lane, Acc rstd, Acc mean) const {
    for_each_pack<kWidth>(size, lane, [&](int64_t i) {
      const Pack<T, kWidth> g = load<kWidth>(dy + i), row = load<kWidth>(x + i);
      const Pack<T, kWidth> scale = load<kWidth>(weight + i);
      const Pack<T, kWidth> added = d_sum != nullptr ? load<kWidth>(d_sum + i) : g;
      Pack<T, kWidth> out;
      for (int w = 0; w < kWidth; ++w) {
        const Acc n = static_cast<Acc>(row.x[w]) * rstd;
        const Acc weighted = static_cast<Acc>(g.x[w]) * norm_factor<Acc>(scale.x[w], plus_one);
        const Acc gradient = rstd * (weighted - n * mean);
        out.x[w] =
            static_cast<T>(d_sum != nullptr ? gradient + static_cast<Acc>(added.x[w]) : gradient);
      }
      store<kWidth>(dx + i, out);
    });
  }
};

}  // namespace ringside::engine::rows
