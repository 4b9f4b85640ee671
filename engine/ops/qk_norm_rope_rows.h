// Row functions of norm and rotation of one head; rows.h has the letters and how lanes share a row.
#pragma once

#include "engine/ops/rms_norm_rows.h"
#include "engine/ops/rows.h"

namespace ringside::engine::rows {

// Where head `head` of token `token` is in a tensor [s, heads, D].
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  // The first element of that head; the others follow densely.
  C10_HOST_DEVICE T* at(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

// Work item `item` of the heads of all tokens.
struct TokenHead {
  int64_t token;
  int64_t head;
};

// The token and head of work item `item`.
C10_HOST_DEVICE inline TokenHead token_head(int64_t item, int64_t heads) {
  return {item / heads, item % heads};
}

// One query or key head: norm (where there is a weight) and rotation of pairs (i, i + half).
template <class T, class Acc, int kWidth>
struct RotatedRow {
  const T* x;
  const T* weight;  // nullptr: no norm
  const T* cos;
  const T* sin;
  T* y;
  int64_t half;
  bool plus_one = false;

  // First phase, for heads with a norm: this lane's sum of the head's squares.
  C10_HOST_DEVICE Acc squares(Lane lane) const {
    Acc total = 0;
    for_each_pack<kWidth>(half, lane, [&](int64_t i) {
      const Pack<T, kWidth> x1 = load<kWidth>(x + i), x2 = load<kWidth>(x + half + i);
      for (int w = 0; w < kWidth; ++w) {
        const Acc a = static_cast<Acc>(x1.x[w]), b = static_cast<Acc>(x2.x[w]);
        total += a * a + b * b;
      }
    });
    return total;
  }

  // Second phase: this lane's part of y. rstd is not read without a norm.
  C10_HOST_DEVICE void write(Lane lane, Acc rstd) const {
    for_each_pack<kWidth>(half, lane, [&](int64_t i) {
      Pack<T, kWidth> x1 = load<kWidth>(x + i), x2 = load<kWidth>(x + half + i);
      const Pack<T, kWidth> c = load<kWidth>(cos + i), s = load<kWidth>(sin + i);
      for (int w = 0; w < kWidth; ++w) {
        Wide<T> a = static_cast<Wide<T>>(x1.x[w]), b = static_cast<Wide<T>>(x2.x[w]);
        if (weight != nullptr) {
          a = normed(x1.x[w], rstd, weight[i + w], plus_one);
          b = normed(x2.x[w], rstd, weight[half + i + w], plus_one);
        }
        const Wide<T> cw = static_cast<Wide<T>>(c.x[w]), sw = static_cast<Wide<T>>(s.x[w]);
        x1.x[w] = static_cast<T>(a * cw - b * sw);
        x2.x[w] = static_cast<T>(b * cw + a * sw);
      }
      store<kWidth>(y + i, x1);
      store<kWidth>(y + half + i, x2);
    });
  }
};

// Gradient of one query or key head: the inverse rotation, then the norm's gradient. Adds to
// d_weight as NormGradRow does. Without a norm only write() is called, and rstd and mean are not
// used.
template <class T, class Acc, int kWidth>
struct RotatedGradRow {
  const T* dy;
  const T* x;
  const T* weight;  // nullptr: no norm
  const T* cos;
  const T* sin;
  T* dx;
  Acc* d_weight;
  int64_t half;
  bool plus_one = false;

  // Calls f(i, g_i, g_{i + half}) with the gradients before the rotation.
  template <class F>
  C10_HOST_DEVICE void for_each_pair(Lane lane, F f) const {
    for_each_pack<kWidth>(half, lane, [&](int64_t i) {
      const Pack<T, kWidth> d1 = load<kWidth>(dy + i), d2 = load<kWidth>(dy + half + i);
      const Pack<T, kWidth> c = load<kWidth>(cos + i), s = load<kWidth>(sin + i);
      for (int w = 0; w < kWidth; ++w) {
        const Acc a = static_cast<Acc>(d1.x[w]), b = static_cast<Acc>(d2.x[w]);
        const Acc cw = static_cast<Acc>(c.x[w]), sw = static_cast<Acc>(s.x[w]);
        f(i + w, a * cw + b * sw, b * cw - a * sw);
      }
    });
  }

  // First phase, for heads with a norm: as NormGradRow::products().
  C10_HOST_DEVICE Acc products(Lane lane, Acc rstd) const {
    Acc total = 0;
    const auto one = [&](int64_t i, Acc g) {
      const Acc product = g * (static_cast<Acc>(x[i]) * rstd);
      d_weight[i] += product;
      total += product * norm_factor<Acc>(weight[i], plus_one);
    };
    for_each_pair(lane, [&](int64_t i, Acc g1, Acc g2) {
      one(i, g1);
      one(half + i, g2);
    });
    return total;
  }

  // Second phase: this lane's part of dx.
  C10_HOST_DEVICE void write(Lane lane, Acc rstd, Acc mean) const {
    const auto one = [&](int64_t i, Acc g) {
      if (weight == nullptr) {
        dx[i] = static_cast<T>(g);
        return;
      }
      const Acc n = static_cast<Acc>(x[i]) * rstd;
      dx[i] = static_cast<T>(rstd * (g * norm_factor<Acc>(weight[i], plus_one) - n * mean));
    };
    for_each_pair(lane, [&](int64_t i, Acc g1, Acc g2) {
      one(i, g1);
      one(half + i, g2);
    });
  }
};

}  // namespace ringside::engine::rows
