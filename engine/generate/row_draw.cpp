#include "engine/generate/row_draw.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "sp/lanes/arithmetic.h"
#include "sp/lanes/for_each_processor.h"

namespace ringside::engine {
namespace {

constexpr int kSums = 16;
// Weights that are summed in fp32. Their sums are added in fp64: over a large vocabulary an fp32
// sum would make rare tokens unreachable.
constexpr int64_t kBlock = 512;

// The highest logit; +inf if one is NaN or +inf.
RINGSIDE_FOR_EACH_PROCESSOR
float highest_of(const float* logits, int64_t n) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float highest[kSums];
  int32_t bad[kSums] = {};
  std::fill_n(highest, kSums, kLowest);
  const auto take = [&](float x, int64_t lane) {
    highest[lane] = std::max(highest[lane], x);
    bad[lane] |= x <= std::numeric_limits<float>::max() ? 0 : 1;
  };
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) {
      take(logits[i + lane], lane);
    }
  }
  for (; i < n; ++i) {
    take(logits[i], 0);
  }
  return std::accumulate(bad, bad + kSums, 0) > 0 ? std::numeric_limits<float>::infinity()
                                                  : *std::max_element(highest, highest + kSums);
}

// weights = e^((logits - highest) scale); returns their sum.
RINGSIDE_FOR_EACH_PROCESSOR
float weigh(const float* __restrict logits, int64_t n, float highest, float scale,
            float* __restrict weights) {
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) {
      const float weight = sp::exp_of((logits[i + lane] - highest) * scale);
      weights[i + lane] = weight;
      sums[lane] += weight;
    }
  }
  for (; i < n; ++i) {
    weights[i] = sp::exp_of((logits[i] - highest) * scale);
    sums[0] += weights[i];
  }
  return std::accumulate(sums, sums + kSums, 0.0f);
}

// Sums of blocks of weights, and the sum of these.
struct BlockSums {
  std::vector<double> of_blocks;
  double total = 0;
};

// The first weight at which the sum of those up to it exceeds `point`.
int64_t place_of(const float* weights, int64_t n, const BlockSums& sums, double point) {
  std::size_t block = 0;
  double before = 0;
  while (block + 1 < sums.of_blocks.size() && before + sums.of_blocks[block] <= point) {
    before += sums.of_blocks[block++];
  }
  const int64_t begin = static_cast<int64_t>(block) * kBlock, end = std::min(n, begin + kBlock);
  int64_t last = begin;  // with a weight: where rounding leaves a gap above the last one
  for (int64_t i = begin; i < end; ++i) {
    before += static_cast<double>(weights[i]);
    last = weights[i] > 0 ? i : last;
    if (before > point) {
      return i;
    }
  }
  return last;
}

// The lowest logit that top_k keeps; tokens tied with it are kept.
float lowest_of_top_k(const float* logits, int64_t n, int64_t top_k) {
  if (top_k <= 0 || top_k >= n) {
    return -std::numeric_limits<float>::infinity();
  }
  std::vector<float> sorted(logits, logits + n);
  std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<>());
  return sorted[top_k - 1];
}

// The tokens that top_p keeps of `kept`, in order of their ids: the smallest set of the likeliest
// ones with this share of the weights' total. Of equal weights those with lower ids come first.
std::vector<int64_t> keep_top_p(const std::vector<int64_t>& kept, const float* weights,
                                double top_p) {
  double total = 0;
  for (const int64_t i : kept) {
    total += static_cast<double>(weights[i]);
  }
  // Tokens below this weight hold less than 1 - top_p together, so none of them is kept.
  const double least = (1 - top_p) * total / static_cast<double>(kept.size());
  std::vector<int64_t> likely;
  for (const int64_t i : kept) {
    if (static_cast<double>(weights[i]) >= least) {
      likely.push_back(i);
    }
  }
  std::sort(likely.begin(), likely.end(), [&](int64_t a, int64_t b) {
    return weights[a] > weights[b] || (weights[a] == weights[b] && a < b);
  });
  double before = 0;
  std::size_t count = 0;
  while (count < likely.size() && before < top_p * total) {
    before += static_cast<double>(weights[likely[count++]]);
  }
  likely.resize(std::max<std::size_t>(count, 1));
  std::sort(likely.begin(), likely.end());
  return likely;
}

// Sets the weights of tokens outside top_k and top_p to 0. Returns those inside.
std::vector<int64_t> cut(const float* logits, int64_t n, const SamplingParams& params,
                         float* weights) {
  const float lowest = lowest_of_top_k(logits, n, params.top_k);
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < n; ++i) {
    if (logits[i] >= lowest) {
      kept.push_back(i);
    }
  }
  if (params.top_p < 1) {
    kept = keep_top_p(kept, weights, params.top_p);
  }
  auto next = kept.begin();
  for (int64_t i = 0; i < n; ++i) {
    const bool keeps = next != kept.end() && *next == i;
    weights[i] = keeps ? weights[i] : 0.0f;
    next += keeps ? 1 : 0;
  }
  return kept;
}

}  // namespace

DrawnToken draw_from_row(const float* logits, int64_t vocabulary, double uniform,
                         const SamplingParams& params, float* weights, std::vector<int64_t>* kept) {
  const float highest = highest_of(logits, vocabulary);
  TORCH_CHECK(std::isfinite(highest),
              "draw_tokens: logits that are not finite; the model has diverged");
  const double scale = params.temperature > 0 ? 1 / params.temperature : 1;
  BlockSums sums;
  const auto add = [&sums](float of_block) {
    sums.of_blocks.push_back(of_block);
    sums.total += of_block;
  };
  for (int64_t begin = 0; begin < vocabulary; begin += kBlock) {
    add(weigh(logits + begin, std::min(kBlock, vocabulary - begin), highest,
              static_cast<float>(scale), weights + begin));
  }
  if (truncates(params, vocabulary)) {
    std::vector<int64_t> inside = cut(logits, vocabulary, params, weights);
    if (kept != nullptr) {
      *kept = std::move(inside);
    }
    sums = {};
    for (int64_t begin = 0; begin < vocabulary; begin += kBlock) {
      add(std::accumulate(weights + begin, weights + std::min(vocabulary, begin + kBlock), 0.0f));
    }
  }
  const int64_t id = params.temperature == 0
                         ? std::find(logits, logits + vocabulary, highest) - logits
                         : place_of(weights, vocabulary, sums, uniform * sums.total);
  const double logprob = (static_cast<double>(logits[id]) - highest) * scale - std::log(sums.total);
  return {id, static_cast<float>(logprob)};
}

}  // namespace ringside::engine
