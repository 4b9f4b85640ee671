#include "engine/ops/bf16_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "sp/lanes/arithmetic.h"
#include "sp/lanes/for_each_processor.h"

namespace ringside::engine::bf16 {
namespace {

using sp::exp_of;
using sp::rounded_to_bf16;
using sp::widened;

constexpr int64_t kLanes = 16;
constexpr int64_t kBlock = 64;                // rows whose sums are added up together
constexpr int64_t kPiece = int64_t{1} << 14;  // elements below which a further thread does not pay

int64_t grain(int64_t elements_of_item) {
  return std::max<int64_t>(1, kPiece / std::max<int64_t>(1, elements_of_item));
}

// x rstd weight as a norm rounds it.
[[gnu::always_inline]] inline uint16_t normed(float x, float rstd, float weight, bool plus_one) {
  const float plain = x * rstd;
  return rounded_to_bf16(plus_one ? plain * (1.0f + weight)
                                  : widened(rounded_to_bf16(plain)) * weight);
}

[[gnu::always_inline]] inline float sigmoid(float x) {
  // Beyond 80 the result is 0 or 1 in fp32, and e^80 still a number.
  return 1.0f / (1.0f + exp_of(-std::min(std::max(x, -80.0f), 80.0f)));
}

RINGSIDE_FOR_EACH_PROCESSOR
void add_row(const uint16_t* __restrict x, const uint16_t* __restrict branch, int64_t size,
             uint16_t* __restrict sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] = rounded_to_bf16(widened(x[i]) + widened(branch[i]));
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
float sum_of_squares(const uint16_t* __restrict x, int64_t size) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = widened(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (; i < size; ++i) {
    lanes[0] += widened(x[i]) * widened(x[i]);
  }
  return std::accumulate(lanes, lanes + kLanes, 0.0f);
}

RINGSIDE_FOR_EACH_PROCESSOR
void norm_row(const uint16_t* __restrict x, const uint16_t* __restrict weight, float rstd,
              bool plus_one, int64_t size, uint16_t* __restrict y) {
  for (int64_t i = 0; i < size; ++i) {
    y[i] = normed(widened(x[i]), rstd, widened(weight[i]), plus_one);
  }
}

// Adds dy n to d_weight; returns the sum of g n.
RINGSIDE_FOR_EACH_PROCESSOR
float gradient_products(const uint16_t* __restrict dy, const uint16_t* __restrict x,
                        const float* __restrict factor, float rstd, int64_t size,
                        float* __restrict d_weight) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float product = widened(dy[i + lane]) * (widened(x[i + lane]) * rstd);
      d_weight[i + lane] += product;
      lanes[lane] += product * factor[i + lane];
    }
  }
  for (; i < size; ++i) {
    const float product = widened(dy[i]) * (widened(x[i]) * rstd);
    d_weight[i] += product;
    lanes[0] += product * factor[i];
  }
  return std::accumulate(lanes, lanes + kLanes, 0.0f);
}

RINGSIDE_FOR_EACH_PROCESSOR
void gradient_row(const uint16_t* __restrict dy, const uint16_t* __restrict x,
                  const float* __restrict factor, const uint16_t* __restrict d_sum, float rstd,
                  float mean, int64_t size, uint16_t* __restrict dx) {
  if (d_sum == nullptr) {
    for (int64_t i = 0; i < size; ++i) {
      dx[i] = rounded_to_bf16(rstd * (widened(dy[i]) * factor[i] - widened(x[i]) * rstd * mean));
    }
    return;
  }
  for (int64_t i = 0; i < size; ++i) {
    const float gradient = rstd * (widened(dy[i]) * factor[i] - widened(x[i]) * rstd * mean);
    dx[i] = rounded_to_bf16(gradient + widened(d_sum[i]));
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void add_to(float* __restrict sum, const float* __restrict values, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] += values[i];
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void rotate_head(const uint16_t* __restrict x, const uint16_t* __restrict cos,
                 const uint16_t* __restrict sin, float sign, int64_t half, uint16_t* __restrict y) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = widened(x[i]), b = widened(x[half + i]);
    const float c = widened(cos[i]), s = sign * widened(sin[i]);
    y[i] = rounded_to_bf16(a * c - b * s);
    y[half + i] = rounded_to_bf16(b * c + a * s);
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void swiglu_row(const uint16_t* __restrict gate, const uint16_t* __restrict up, int64_t f,
                uint16_t* __restrict out) {
  for (int64_t i = 0; i < f; ++i) {
    const float g = widened(gate[i]);
    out[i] = rounded_to_bf16(g * sigmoid(g) * widened(up[i]));
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void swiglu_gradient_row(const uint16_t* __restrict dy, const uint16_t* __restrict gate,
                         const uint16_t* __restrict up, int64_t f, uint16_t* __restrict d_gate,
                         uint16_t* __restrict d_up) {
  for (int64_t i = 0; i < f; ++i) {
    const float g = widened(gate[i]), s = sigmoid(g), d = widened(dy[i]);
    d_gate[i] = rounded_to_bf16(d * widened(up[i]) * s * (1.0f + g * (1.0f - s)));
    d_up[i] = rounded_to_bf16(d * g * s);
  }
}

// What a norm multiplies by, in fp32.
std::vector<float> factors(const uint16_t* weight, int64_t size, bool plus_one) {
  std::vector<float> factor(static_cast<std::size_t>(size));
  std::transform(weight, weight + size, factor.begin(),
                 [&](uint16_t word) { return plus_one ? 1.0f + widened(word) : widened(word); });
  return factor;
}

}  // namespace

bool takes(std::initializer_list<at::Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) {
    return !t.defined() || (t.device().is_cpu() && t.scalar_type() == at::kBFloat16 &&
                            t.layout() == at::kStrided && t.is_contiguous());
  });
}

void norm(const NormRows& n) {
  at::parallel_for(0, n.rows, grain(n.size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint16_t* from = n.x + row * n.size;
      if (n.branch != nullptr) {
        add_row(from, n.branch + row * n.size, n.size, n.sum + row * n.size);
        from = n.sum + row * n.size;
      }
      const float mean = sum_of_squares(from, n.size) / static_cast<float>(n.size);
      n.rstd[row] = 1.0f / std::sqrt(mean + n.eps);
      norm_row(from, n.weight, n.rstd[row], n.plus_one, n.size, n.y + row * n.size);
    }
  });
}

void norm_gradient(const NormGradientRows& n) {
  const std::vector<float> factor = factors(n.weight, n.size, n.plus_one);
  const int64_t blocks = (n.rows + kBlock - 1) / kBlock;
  std::vector<float> partial(static_cast<std::size_t>(blocks * n.size));
  at::parallel_for(0, blocks, grain(kBlock * n.size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kBlock; row < std::min(end * kBlock, n.rows); ++row) {
      const int64_t at = row * n.size;
      const float sum = gradient_products(n.dy + at, n.x + at, factor.data(), n.rstd[row], n.size,
                                          partial.data() + row / kBlock * n.size);
      gradient_row(n.dy + at, n.x + at, factor.data(), n.d_sum == nullptr ? nullptr : n.d_sum + at,
                   n.rstd[row], sum / static_cast<float>(n.size), n.size, n.dx + at);
    }
  });
  std::fill_n(n.d_weight, n.size, 0.0f);
  for (int64_t block = 0; block < blocks; ++block) {
    add_to(n.d_weight, partial.data() + block * n.size, n.size);
  }
}

void rotate(const Heads& x, const Bf16Word* cos, const Bf16Word* sin, float sign, int64_t tokens,
            int64_t half, Bf16Word* y, int64_t y_stride) {
  at::parallel_for(0, tokens, grain(2 * half * x.count), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = 0; head < x.count; ++head) {
        rotate_head(x.data + token * x.token_stride + head * 2 * half, cos + token * half,
                    sin + token * half, sign, half, y + token * y_stride + head * 2 * half);
      }
    }
  });
}

void swiglu(const Bf16Word* gate_up, int64_t rows, int64_t f, Bf16Word* out) {
  at::parallel_for(0, rows, grain(f), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      swiglu_row(gate_up + 2 * row * f, gate_up + (2 * row + 1) * f, f, out + row * f);
    }
  });
}

void swiglu_gradient(const Bf16Word* dy, const Bf16Word* gate_up, int64_t rows, int64_t f,
                     Bf16Word* d_gate_up) {
  at::parallel_for(0, rows, grain(f), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t gate = 2 * row * f, up = gate + f;
      swiglu_gradient_row(dy + row * f, gate_up + gate, gate_up + up, f, d_gate_up + gate,
                          d_gate_up + up);
    }
  });
}

}  // namespace ringside::engine::bf16
