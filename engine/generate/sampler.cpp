#include "engine/generate/sampler.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/generate/row_draw.h"

namespace ringside::engine {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::Tensor keep_top_k(const at::Tensor& logits_BV, int64_t top_k) {
  const auto [top, indices] = at::topk(logits_BV, top_k, -1);
  return logits_BV.masked_fill(logits_BV < top.narrow(-1, top_k - 1, 1), kMinusInfinity);
}

// Keeps a token when the more likely tokens together hold less than top_p; so the first is always
// kept.
at::Tensor keep_top_p(const at::Tensor& logits_BV, double top_p) {
  const auto [sorted, order] = logits_BV.sort(/*stable=*/true, -1, /*descending=*/true);
  const at::Tensor probs = at::softmax(sorted, -1, at::kDouble);
  const at::Tensor before = probs.cumsum(-1) - probs;
  const at::Tensor removed = at::empty(before.sizes(), before.options().dtype(at::kBool));
  return logits_BV.masked_fill(removed.scatter(-1, order, before >= top_p), kMinusInfinity);
}

void check_finite(const at::Tensor& values) {
  TORCH_CHECK(values.isfinite().all().item<bool>(),
              "draw_tokens: logits that are not finite; the model has diverged");
}

// Row by row, without a tensor for each step.
Draw draw_rows(const at::Tensor& logits_BV, const at::Tensor& uniform_B,
               const SamplingParams& params, bool records_kept) {
  const int64_t rows = logits_BV.size(0), vocabulary = logits_BV.size(1);
  const at::Tensor logits = logits_BV.contiguous(), uniform = uniform_B.contiguous();
  Draw draw{at::empty({rows}, at::kLong), at::empty({rows}, at::kFloat)};
  draw.kept.resize(records_kept ? rows : 0);
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> weights(vocabulary);
    for (int64_t row = begin; row < end; ++row) {
      const DrawnToken drawn =
          draw_from_row(logits.const_data_ptr<float>() + row * vocabulary, vocabulary,
                        uniform.const_data_ptr<double>()[row], params, weights.data(),
                        records_kept ? &draw.kept[row] : nullptr);
      draw.ids_B.mutable_data_ptr<int64_t>()[row] = drawn.id;
      draw.logprobs_B.mutable_data_ptr<float>()[row] = drawn.logprob;
    }
  });
  return draw;
}

// The ids of each row whose log-prob is finite.
std::vector<std::vector<int64_t>> finite_ids(const at::Tensor& logprobs_BV) {
  std::vector<std::vector<int64_t>> ids(logprobs_BV.size(0));
  const at::Tensor places = logprobs_BV.isfinite().nonzero().to(at::kCPU).contiguous();
  const auto* place = places.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < places.size(0); ++i) {
    ids[place[2 * i]].push_back(place[2 * i + 1]);
  }
  return ids;
}

}  // namespace

bool truncates(const SamplingParams& params, int64_t vocabulary) {
  return params.top_p < 1 || (params.top_k > 0 && params.top_k < vocabulary);
}

void check_sampling_params(const SamplingParams& params) {
  const auto require = [](bool holds, const std::string& message) {
    if (!holds) {
      throw std::invalid_argument("sampling: " + message);
    }
  };
  require(params.temperature >= 0,
          "temperature must not be negative, got " + std::to_string(params.temperature));
  require(params.top_p > 0 && params.top_p <= 1,
          "top_p must be in (0, 1], got " + std::to_string(params.top_p));
  require(params.top_k >= 0, "top_k must not be negative, got " + std::to_string(params.top_k));
  require(params.max_new_tokens > 0,
          "max_new_tokens must be positive, got " + std::to_string(params.max_new_tokens));
}

double RandomStream::uniform(uint64_t token) const {
  at::Philox4_32 engine(seed, sequence, token);
  const uint64_t high = engine();
  const uint64_t low = engine();
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

at::Tensor sampling_logprobs(const at::Tensor& logits_BV, const SamplingParams& params) {
  at::Tensor logits = params.temperature > 0 && params.temperature != 1
                          ? logits_BV / params.temperature
                          : logits_BV;
  if (params.top_k > 0 && params.top_k < logits.size(-1)) {
    logits = keep_top_k(logits, params.top_k);
  }
  if (params.top_p < 1) {
    logits = keep_top_p(logits, params.top_p);
  }
  return at::log_softmax(logits, -1);
}

Draw draw_tokens(const at::Tensor& logits_BV, const at::Tensor& uniform_B,
                 const SamplingParams& params, bool records_kept) {
  records_kept = records_kept && truncates(params, logits_BV.size(1));
  if (logits_BV.is_cpu() && logits_BV.scalar_type() == at::kFloat) {
    return draw_rows(logits_BV, uniform_B, params, records_kept);
  }
  const at::Tensor logprobs_BV = sampling_logprobs(logits_BV, params);
  at::Tensor ids_B1;
  if (params.temperature == 0) {
    ids_B1 = logprobs_BV.argmax(-1, /*keepdim=*/true);
    check_finite(logprobs_BV.gather(1, ids_B1));  // a NaN counts as the largest
  } else {
    // In fp64, because over a large vocabulary an fp32 sum would make rare tokens unreachable.
    // Divided by its last element, so rounding leaves no gap above the last token.
    const at::Tensor cumulative = at::exp(logprobs_BV.to(at::kDouble)).cumsum(-1);
    const at::Tensor total = cumulative.narrow(1, -1, 1);
    check_finite(total);
    const at::Tensor point = uniform_B.unsqueeze(1) * total;
    ids_B1 = at::searchsorted(cumulative, point, /*out_int32=*/false, /*right=*/true);
  }
  return {ids_B1.squeeze(1), logprobs_BV.gather(1, ids_B1).squeeze(1),
          records_kept ? finite_ids(logprobs_BV) : std::vector<std::vector<int64_t>>{}};
}

}  // namespace ringside::engine
