#include "engine/generate/kv_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace ringside::engine {

KvCache::KvCache(const ModelConfig& config, std::vector<int64_t> prompt_lengths,
                 const ComputeContext& context, int64_t expected_columns)
    : prompt_lengths_(std::move(prompt_lengths)),
      keeps_latents_(config.has_latent_attention()),
      scale_(1.0 / std::sqrt(static_cast<double>(config.head_dim))) {
  TORCH_CHECK(!prompt_lengths_.empty(), "KvCache: no prompts");
  const auto [shortest, longest] =
      std::minmax_element(prompt_lengths_.begin(), prompt_lengths_.end());
  TORCH_CHECK(*shortest > 0, "KvCache: a prompt of ", *shortest, " tokens");
  columns_ = *longest;
  const int64_t rows = static_cast<int64_t>(prompt_lengths_.size());
  const int64_t capacity = std::max(expected_columns, columns_);
  const int64_t heads = keeps_latents_ ? 1 : config.num_key_value_heads;
  const int64_t dim =
      keeps_latents_ ? config.latent.kv_rank + config.latent.rope_dim : config.head_dim;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    // Zeros, because a NaN in a masked column would survive its weight of 0.
    keys_.push_back(at::zeros({rows, heads, capacity, dim}, context.compute_options()));
    if (!keeps_latents_) {
      values_.push_back(at::zeros_like(keys_.back()));
    }
  }
  if (*shortest != *longest) {
    mask_B1T_ = at::zeros({rows, 1, capacity}, context.compute_options());
    for (int64_t b = 0; b < rows; ++b) {
      mask_B1T_[b]
          .narrow(1, 0, columns_ - prompt_lengths_[b])
          .fill_(-std::numeric_limits<double>::infinity());
    }
  }
}

void KvCache::begin_step() {
  prefilled_ = true;
  reserve(columns_ + 1);
  ++columns_;
}

void KvCache::reserve(int64_t columns) {
  const int64_t capacity = keys_.front().size(2);
  if (columns <= capacity) {
    return;
  }
  const int64_t added = std::max(columns - capacity, capacity);
  const auto grow = [added](at::Tensor& cache, int64_t dim) {
    std::vector<int64_t> shape = cache.sizes().vec();
    shape[dim] = added;
    cache = at::cat({cache, at::zeros(shape, cache.options())}, dim);
  };
  for (auto* caches : {&keys_, &values_}) {
    for (at::Tensor& cache : *caches) {
      grow(cache, 2);
    }
  }
  if (mask_B1T_.defined()) {
    grow(mask_B1T_, 2);
  }
}

void KvCache::keep_rows(const at::Tensor& rows_b) {
  for (auto* caches : {&keys_, &values_}) {
    for (at::Tensor& cache : *caches) {
      cache = cache.index_select(0, rows_b);
    }
  }
  if (mask_B1T_.defined()) {
    mask_B1T_ = mask_B1T_.index_select(0, rows_b);
  }
}

at::Tensor KvCache::attend(int64_t layer, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                           const at::Tensor& v_sKD) {
  return prefilled_ ? decode(layer, q_sHD, k_sKD, v_sKD) : prefill(layer, q_sHD, k_sKD, v_sKD);
}

at::Tensor KvCache::prefill(int64_t layer, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                            const at::Tensor& v_sKD) {
  std::vector<at::Tensor> outs;
  int64_t begin = 0;
  for (std::size_t b = 0; b < prompt_lengths_.size(); ++b) {
    const int64_t n = prompt_lengths_[b];
    const auto heads_first = [begin, n](const at::Tensor& x) {
      return x.narrow(0, begin, n).transpose(0, 1);
    };
    const at::Tensor k_KnD = heads_first(k_sKD), v_KnD = heads_first(v_sKD);
    keys_[layer][b].narrow(1, columns_ - n, n).copy_(k_KnD);
    values_of(layer)[b].narrow(1, columns_ - n, n).copy_(v_KnD);
    outs.push_back(at::scaled_dot_product_attention(heads_first(q_sHD).unsqueeze(0),
                                                    k_KnD.unsqueeze(0), v_KnD.unsqueeze(0),
                                                    /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                                    /*is_causal=*/true, scale_, /*enable_gqa=*/true)
                       .squeeze(0)
                       .transpose(0, 1));
    begin += n;
  }
  return at::cat(outs);
}

// The g queries of a key/value head form one small matrix, so no key/value head is repeated.
at::Tensor KvCache::decode(int64_t layer, const at::Tensor& q_BHD, const at::Tensor& k_BKD,
                           const at::Tensor& v_BKD) {
  at::Tensor &keys = keys_[layer], &values = values_of(layer);
  TORCH_CHECK(q_BHD.size(0) == keys.size(0), "KvCache: ", keys.size(0), " sequences, got ",
              q_BHD.size(0), " rows");
  keys.select(2, columns_ - 1).copy_(k_BKD);
  values.select(2, columns_ - 1).copy_(v_BKD);
  const int64_t rows = q_BHD.size(0), kv_heads = k_BKD.size(1), d = q_BHD.size(2);
  const auto flat = [&](const at::Tensor& cache) {
    return cache.view({rows * kv_heads, cache.size(2), d}).narrow(1, 0, columns_);
  };
  const at::Tensor q = (q_BHD * scale_).view({rows * kv_heads, q_BHD.size(1) / kv_heads, d});
  at::Tensor scores = at::bmm(q, flat(keys).transpose(1, 2));
  if (mask_B1T_.defined()) {
    scores.view({rows, -1, columns_}).add_(mask_B1T_.narrow(2, 0, columns_));
  }
  const at::Tensor probs = at::softmax(scores, -1);
  return at::bmm(probs, flat(values)).view(q_BHD.sizes());
}

}  // namespace ringside::engine
