// Row functions of the scores of one row of logits; rows.h has the letters and how lanes share a
// row.
#pragma once

#include "engine/ops/rows.h"

namespace ringside::engine::rows {

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
