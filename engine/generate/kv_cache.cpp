#include "engine/generate/kv_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/layers/decoder_layer.h"

namespace ringside::engine {
namespace {

// Query rows of a prompt whose scores exist at once.
constexpr int64_t kRowsAtOnce = 256;

// Most columns that a layer with this window keeps. When they are full the window moves to their
// front, which costs a fraction of a column's reading a step.
int64_t most_columns(int64_t window) { return window + std::max<int64_t>(64, window / 4); }

// The cache with `added` more columns of zeros.
void grow(at::Tensor& cache, int64_t added) {
  std::vector<int64_t> shape = cache.sizes().vec();
  shape[2] = added;
  cache = at::cat({cache, at::zeros(shape, cache.options())}, 2);
}

// What scores and sums of values are computed in, as the trainer's attention does. A score of 20
// rounded to bf16 is off by up to 0.06, and a policy that attends so is not the trainer's.
at::ScalarType sum_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Scaled products of queries [B, n, D] with keys [B, m, D] in the dtype of sums: [B, n, m].
at::Tensor scores_of(const at::Tensor& q_BnD, const at::Tensor& k_BmD, double scale) {
  const at::ScalarType sums = sum_dtype(q_BnD);
  if (q_BnD.is_cuda() && q_BnD.scalar_type() != sums) {  // CUDA has this product without a copy
    return at::bmm(q_BnD, k_BmD.transpose(1, 2), sums).mul_(scale);
  }
  return at::bmm(q_BnD.to(sums) * scale, k_BmD.to(sums).transpose(1, 2));
}

// Values [B, m, D] weighted by probs [B, n, m]; returns [B, n, D] in the values' dtype. On CUDA the
// probs are rounded to that dtype, as FlashAttention does.
at::Tensor weighted_values(const at::Tensor& probs_Bnm, const at::Tensor& v_BmD) {
  const at::ScalarType factors = v_BmD.is_cuda() ? v_BmD.scalar_type() : sum_dtype(v_BmD);
  return at::bmm(probs_Bnm.to(factors), v_BmD.to(factors)).to(v_BmD.scalar_type());
}

// Softmax over the last dim of scores [.., H, n]; sinks join the sums without a column.
at::Tensor softmax_with_sinks(const at::Tensor& scores_xHn, const at::Tensor& sinks_H) {
  if (!sinks_H.defined()) {
    return at::softmax(scores_xHn, -1);
  }
  std::vector<int64_t> shape = scores_xHn.sizes().vec();
  shape.back() = 1;
  const at::Tensor column = sinks_H.to(scores_xHn.scalar_type()).unsqueeze(1).expand(shape);
  return at::softmax(at::cat({scores_xHn, column}, -1), -1).narrow(-1, 0, scores_xHn.size(-1));
}

// Rows `begin` and following of a prompt, each over the keys of its window.
// Shapes: q [H, n, D], k and v [K, n, D]; returns [H, rows, D].
at::Tensor attend_rows(const AttentionSpec& spec, const at::Tensor& q_HnD, const at::Tensor& k_KnD,
                       const at::Tensor& v_KnD, int64_t begin, int64_t rows) {
  const int64_t heads = q_HnD.size(0), kv_heads = k_KnD.size(0), d = q_HnD.size(2);
  const int64_t first = spec.window > 0 ? std::max<int64_t>(0, begin - spec.window + 1) : 0;
  const int64_t keys = begin + rows - first;
  // The g queries of a key/value head form one matrix.
  const at::Tensor q = q_HnD.narrow(1, begin, rows).reshape({kv_heads, -1, d});
  const at::Tensor scores =
      scores_of(q, k_KnD.narrow(1, first, keys), spec.softmax_scale).view({heads, rows, keys});
  // By how much a query is behind a key.
  const at::Tensor behind = at::arange(begin, begin + rows, q.options().dtype(at::kLong))
                                .unsqueeze(1)
                                .sub(at::arange(first, begin + rows, q.options().dtype(at::kLong)));
  at::Tensor hidden = behind < 0;
  if (spec.window > 0) {
    hidden.logical_or_(behind >= spec.window);
  }
  scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor probs = softmax_with_sinks(scores.transpose(0, 1), spec.sinks_H).transpose(0, 1);
  return weighted_values(probs.reshape({kv_heads, -1, keys}), v_KnD.narrow(1, first, keys))
      .view({heads, rows, d});
}

// Causal attention inside one prompt.
at::Tensor attend_prompt(const AttentionSpec& spec, const at::Tensor& q_HnD,
                         const at::Tensor& k_KnD, const at::Tensor& v_KnD) {
  const int64_t n = q_HnD.size(1);
  const bool hides_nothing = spec.window == 0 || n <= spec.window;
  if (hides_nothing && !spec.sinks_H.defined()) {
    // CUDA's kernels sum in fp32 themselves.
    const at::ScalarType dtype = q_HnD.is_cuda() ? q_HnD.scalar_type() : sum_dtype(q_HnD);
    const auto one = [dtype](const at::Tensor& x) { return x.to(dtype).unsqueeze(0); };
    return at::scaled_dot_product_attention(one(q_HnD), one(k_KnD), one(v_KnD), /*attn_mask=*/{},
                                            /*dropout_p=*/0.0, /*is_causal=*/true,
                                            spec.softmax_scale, /*enable_gqa=*/true)
        .squeeze(0)
        .to(q_HnD.scalar_type());
  }
  std::vector<at::Tensor> outs;
  for (int64_t begin = 0; begin < n; begin += kRowsAtOnce) {
    outs.push_back(attend_rows(spec, q_HnD, k_KnD, v_KnD, begin, std::min(kRowsAtOnce, n - begin)));
  }
  return at::cat(outs, 1);
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, std::vector<int64_t> prompt_lengths,
                 const ComputeContext& context, int64_t expected_columns)
    : prompt_lengths_(std::move(prompt_lengths)),
      recurrent_(config.num_hidden_layers, prompt_lengths_) {
  TORCH_CHECK(!prompt_lengths_.empty(), "KvCache: no prompts");
  const auto [shortest, longest] =
      std::minmax_element(prompt_lengths_.begin(), prompt_lengths_.end());
  TORCH_CHECK(*shortest > 0, "KvCache: a prompt of ", *shortest, " tokens");
  columns_ = *longest;
  const int64_t rows = static_cast<int64_t>(prompt_lengths_.size());
  const int64_t capacity = std::max(expected_columns, columns_);
  for (const DecoderLayer& of_model : make_layers(config)) {
    LayerColumns& layer = layers_.emplace_back();
    const TokenFlow flow = of_model.token_mixer().flow();
    if (!flow.keys) {
      continue;
    }
    layer.window = flow.window;
    layer.first = layer.window > 0 ? std::max<int64_t>(0, columns_ - layer.window) : 0;
    const int64_t kept =
        layer.window > 0 ? std::min(capacity, most_columns(layer.window)) : capacity;
    // Zeros, because a NaN in a masked column would survive its weight of 0.
    layer.keys =
        at::zeros({rows, flow.keys->heads, kept, flow.keys->dim}, context.compute_options());
    if (!flow.keys->are_values) {
      layer.values = at::zeros_like(layer.keys);
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
  ++columns_;
  for (LayerColumns& layer : layers_) {
    if (layer.keys.defined()) {
      reserve(layer, columns_);
    }
  }
  if (mask_B1T_.defined() && columns_ > mask_B1T_.size(2)) {
    grow(mask_B1T_, mask_B1T_.size(2));
  }
}

// Makes place for columns up to `columns`, of which the last is not written yet.
void KvCache::reserve(LayerColumns& layer, int64_t columns) {
  const int64_t capacity = layer.keys.size(2);
  if (columns - layer.first <= capacity) {
    return;
  }
  const int64_t most = layer.window > 0 ? most_columns(layer.window) : 2 * capacity;
  const int64_t added = std::min(capacity, most - capacity);
  const int64_t moved = layer.window - 1;  // columns that the next one can see, beside itself
  for (at::Tensor* cache : {&layer.keys, &layer.values}) {
    if (cache->defined() && added > 0) {
      grow(*cache, added);
    } else if (cache->defined()) {
      cache->narrow(2, 0, moved).copy_(cache->narrow(2, capacity - moved, moved).clone());
    }
  }
  layer.first += added > 0 ? 0 : capacity - moved;
}

void KvCache::keep_rows(const at::Tensor& rows_b) {
  recurrent_.keep_rows(rows_b);
  for (LayerColumns& layer : layers_) {
    for (at::Tensor* cache : {&layer.keys, &layer.values}) {
      *cache = cache->defined() ? cache->index_select(0, rows_b) : *cache;
    }
  }
  if (mask_B1T_.defined()) {
    mask_B1T_ = mask_B1T_.index_select(0, rows_b);
  }
}

int64_t KvCache::bytes() const {
  std::size_t sum = 0;
  for (const LayerColumns& layer : layers_) {
    for (const at::Tensor* cache : {&layer.keys, &layer.values}) {
      sum += cache->defined() ? cache->nbytes() : 0;
    }
  }
  return static_cast<int64_t>(sum);
}

at::Tensor KvCache::attend(const AttentionSpec& spec, const at::Tensor& q_sHD,
                           const at::Tensor& k_sKD, const at::Tensor& v_sKD) {
  return prefilled_ ? decode(spec, q_sHD, k_sKD, v_sKD) : prefill(spec, q_sHD, k_sKD, v_sKD);
}

at::Tensor KvCache::prefill(const AttentionSpec& spec, const at::Tensor& q_sHD,
                            const at::Tensor& k_sKD, const at::Tensor& v_sKD) {
  LayerColumns& layer = layers_.at(spec.layer);
  std::vector<at::Tensor> outs;
  int64_t begin = 0;
  for (std::size_t b = 0; b < prompt_lengths_.size(); ++b) {
    const int64_t n = prompt_lengths_[b];
    const auto heads_first = [begin, n](const at::Tensor& x) {
      return x.narrow(0, begin, n).transpose(0, 1);
    };
    const at::Tensor q_HnD = heads_first(q_sHD), k_KnD = heads_first(k_sKD);
    const at::Tensor v_KnD = heads_first(v_sKD);
    const int64_t kept = std::min(n, columns_ - layer.first);
    const int64_t place = columns_ - layer.first - kept;
    layer.keys[b].narrow(1, place, kept).copy_(k_KnD.narrow(1, n - kept, kept));
    layer.read_values()[b].narrow(1, place, kept).copy_(v_KnD.narrow(1, n - kept, kept));
    outs.push_back(attend_prompt(spec, q_HnD, k_KnD, v_KnD).transpose(0, 1));
    begin += n;
  }
  return at::cat(outs);
}

// With a window only its last columns are read. A sequence's start hides the columns before it.
at::Tensor KvCache::decode(const AttentionSpec& spec, const at::Tensor& q_BHD,
                           const at::Tensor& k_BKD, const at::Tensor& v_BKD) {
  LayerColumns& layer = layers_.at(spec.layer);
  at::Tensor &keys = layer.keys, &values = layer.read_values();
  TORCH_CHECK(q_BHD.size(0) == keys.size(0), "KvCache: ", keys.size(0), " sequences, got ",
              q_BHD.size(0), " rows");
  TORCH_CHECK(spec.window == layer.window, "KvCache: layer ", spec.layer, " has a window of ",
              layer.window, ", got ", spec.window);
  keys.select(2, columns_ - 1 - layer.first).copy_(k_BKD);
  values.select(2, columns_ - 1 - layer.first).copy_(v_BKD);
  const int64_t rows = q_BHD.size(0), kv_heads = k_BKD.size(1), d = q_BHD.size(2);
  const int64_t columns = spec.window > 0 ? std::min(spec.window, columns_) : columns_;
  const auto flat = [&](const at::Tensor& cache) {
    return cache.view({rows * kv_heads, cache.size(2), d})
        .narrow(1, columns_ - columns - layer.first, columns);
  };
  const at::Tensor q = q_BHD.reshape({rows * kv_heads, q_BHD.size(1) / kv_heads, d});
  const at::Tensor scores = scores_of(q, flat(keys), spec.softmax_scale);
  if (mask_B1T_.defined()) {
    scores.view({rows, -1, columns}).add_(mask_B1T_.narrow(2, columns_ - columns, columns));
  }
  const at::Tensor probs = softmax_with_sinks(scores.view({rows, -1, columns}), spec.sinks_H);
  return weighted_values(probs.view(scores.sizes()), flat(values)).view(q_BHD.sizes());
}

}  // namespace ringside::engine
