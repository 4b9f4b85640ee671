// Row functions of the CUDA kernels: what one lane of a group of lanes does with one row. They
// hold all index arithmetic and compile for the host too, where a test runs them lane by lane.
//
// A row with a sum takes two phases: every lane sums its elements, the kernel adds the lanes' sums,
// every lane writes its elements. Both phases give a lane the same elements, so a lane reads back
// only what it wrote itself.
//
// Shapes: T = dtype of the tensors, Acc = dtype of sums, kWidth = elements of one load; a row's
// size is a multiple of kWidth and its pointers are aligned to kWidth elements.
#pragma once

#include <c10/macros/Macros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace ringside::engine::rows {

// One of `count` lanes that share a row.
struct Lane {
  int64_t index;
  int64_t count;
};

// The elements of one load.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T x[kWidth];
};

// The kWidth elements from `from` on, in one load.
template <int kWidth, class T>
C10_HOST_DEVICE inline Pack<T, kWidth> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(from);
}

// Writes a pack to `to` in one store.
template <int kWidth, class T>
C10_HOST_DEVICE inline void store(T* to, const Pack<T, kWidth>& pack) {
  *reinterpret_cast<Pack<T, kWidth>*>(to) = pack;
}

// Calls f with the first element of each of the lane's packs in a row of `size` elements.
template <int kWidth, class F>
C10_HOST_DEVICE inline void for_each_pack(int64_t size, Lane lane, F f) {
  for (int64_t i = lane.index * kWidth; i < size; i += lane.count * kWidth) {
    f(i);
  }
}

// The dtype in which products of T are computed.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

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

// Pack `item` of all rows of [gate | up].
struct SwigluPlace {
  int64_t gate;  // element of the [s, 2F] tensor; up is F further
  int64_t out;   // element of the [s, F] tensor
};

// The place of pack `item` of `width` elements, a divisor of F (f).
C10_HOST_DEVICE inline SwigluPlace swiglu_place(int64_t item, int64_t f, int width) {
  const int64_t packs = f / width, row = item / packs, column = item % packs * width;
  return {row * 2 * f + column, row * f + column};
}

// 1 / (1 + e^-x).
template <class Real>
C10_HOST_DEVICE inline Real sigmoid(Real x) {
  return Real(1) / (Real(1) + std::exp(-x));
}

// silu(gate) * up of one pack.
template <class T, int kWidth>
C10_HOST_DEVICE inline void swiglu_pack(const T* gate_up, T* out, int64_t f, int64_t item) {
  const SwigluPlace place = swiglu_place(item, f, kWidth);
  const Pack<T, kWidth> gate = load<kWidth>(gate_up + place.gate);
  Pack<T, kWidth> up = load<kWidth>(gate_up + place.gate + f);
  for (int w = 0; w < kWidth; ++w) {
    const Wide<T> g = static_cast<Wide<T>>(gate.x[w]);
    up.x[w] = static_cast<T>(g * sigmoid(g) * static_cast<Wide<T>>(up.x[w]));
  }
  store<kWidth>(out + place.out, up);
}

// Its gradient: d gate = dy up s (1 + gate (1 - s)), d up = dy gate s, with s = sigmoid(gate).
template <class T, int kWidth>
C10_HOST_DEVICE inline void swiglu_grad_pack(const T* dy, const T* gate_up, T* d_gate_up, int64_t f,
                                             int64_t item) {
  const SwigluPlace place = swiglu_place(item, f, kWidth);
  const Pack<T, kWidth> d = load<kWidth>(dy + place.out);
  Pack<T, kWidth> gate = load<kWidth>(gate_up + place.gate);
  Pack<T, kWidth> up = load<kWidth>(gate_up + place.gate + f);
  for (int w = 0; w < kWidth; ++w) {
    const Wide<T> g = static_cast<Wide<T>>(gate.x[w]), u = static_cast<Wide<T>>(up.x[w]);
    const Wide<T> dw = static_cast<Wide<T>>(d.x[w]), s = sigmoid(g);
    gate.x[w] = static_cast<T>(dw * u * s * (Wide<T>(1) + g * (Wide<T>(1) - s)));
    up.x[w] = static_cast<T>(dw * g * s);
  }
  store<kWidth>(d_gate_up + place.gate, gate);
  store<kWidth>(d_gate_up + place.gate + f, up);
}

// Sums over part of a row of logits x, relative to their maximum: sum of e^(x - max), and the same
// weighted by x - max. An element of -inf adds nothing.
template <class Acc>
struct ScoreSums {
  Acc max = static_cast<Acc>(-INFINITY);
  Acc sum = 0;
  Acc weighted = 0;

  // Adds one element.
  C10_HOST_DEVICE void add(Acc x) { merge({x, Acc(1), Acc(0)}); }

  // Adds the sums of another part of the row.
  C10_HOST_DEVICE void merge(const ScoreSums& other) {
    const Acc none = static_cast<Acc>(-INFINITY);
    if (other.max == none) {
      return;
    }
    if (max == none) {
      *this = other;
      return;
    }
    const bool mine = max >= other.max;
    const ScoreSums low = mine ? other : *this;
    if (!mine) {
      *this = other;
    }
    const Acc shift = low.max - max, factor = std::exp(shift);
    sum += factor * low.sum;
    weighted += factor * (low.weighted + low.sum * shift);
  }

  // Of the whole row: log of the sum of e^x, and the entropy of softmax(x) in nats.
  C10_HOST_DEVICE Acc lse() const { return max + std::log(sum); }
  C10_HOST_DEVICE Acc entropy() const { return std::log(sum) - weighted / sum; }
};

// A row of logits, divided by its temperature.
template <class T, class Acc, int kWidth>
struct ScoreRow {
  const T* logits;
  int64_t size;
  Acc inverse_temperature;

  // This lane's sums.
  C10_HOST_DEVICE ScoreSums<Acc> scan(Lane lane) const {
    ScoreSums<Acc> sums;
    for_each_pack<kWidth>(size, lane, [&](int64_t i) {
      const Pack<T, kWidth> pack = load<kWidth>(logits + i);
      for (int w = 0; w < kWidth; ++w) {
        sums.add(static_cast<Acc>(pack.x[w]) * inverse_temperature);
      }
    });
    return sums;
  }

  // Logit i divided by the temperature.
  C10_HOST_DEVICE Acc tempered(int64_t i) const {
    return static_cast<Acc>(logits[i]) * inverse_temperature;
  }
};

// d logits = g_logprob * (onehot - p) - g_entropy * p * (log p + entropy), in place of the logits.
template <class T, class Acc, int kWidth>
struct ScoreGradRow {
  T* logits;
  int64_t size;
  int64_t target;
  Acc inverse_temperature;
  Acc lse;
  Acc entropy;
  Acc g_logprob;
  Acc g_entropy;

  // This lane's elements.
  C10_HOST_DEVICE void write(Lane lane) const {
    for_each_pack<kWidth>(size, lane, [&](int64_t i) {
      Pack<T, kWidth> pack = load<kWidth>(logits + i);
      for (int w = 0; w < kWidth; ++w) {
        const Acc logp = static_cast<Acc>(pack.x[w]) * inverse_temperature - lse;
        const Acc p = std::exp(logp);
        // p is 0 where log p is -inf.
        const Acc tilt = p > Acc(0) ? g_entropy * (logp + entropy) : Acc(0);
        const Acc hit = i + w == target ? g_logprob : Acc(0);
        pack.x[w] = static_cast<T>(hit - p * (g_logprob + tilt));
      }
      store<kWidth>(logits + i, pack);
    });
  }
};

}  // namespace ringside::engine::rows
