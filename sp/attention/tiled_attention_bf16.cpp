#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "sp/attention/bf16_tiles.h"
#include "sp/attention/tile_math.h"
#include "sp/attention/tiled_attention.h"

namespace ringside::sp {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Rows whose elements lie beside each other and begin where 32-bit words do.
at::Tensor with_word_rows(const at::Tensor& x) {
  bool words = x.stride(-1) == 1 && x.storage_offset() % 2 == 0;
  for (int64_t dim = 0; dim + 1 < x.dim(); ++dim) {
    words = words && x.stride(dim) % 2 == 0;
  }
  return words ? x : x.clone(at::MemoryFormat::Contiguous);
}

Bf16Word* words_of(float* scratch) { return reinterpret_cast<Bf16Word*>(scratch); }

int64_t padded_rows(int64_t rows) { return columns_size(rows, 1); }

// A key/value head of a block, packed for the forward: rows of keys, tiles of transposed values.
struct Bf16Keys {
  const Bf16Word* key_rows;
  const Bf16Word* value_columns;
  int64_t count;
};

// All of a call's.
class Bf16KeyHeads {
 public:
  Bf16KeyHeads(const at::Tensor& k_BmKD, const at::Tensor& v_BmKD)
      : keys_(k_BmKD.size(1)), heads_(k_BmKD.size(2)) {
    const int64_t count = k_BmKD.size(0) * heads_, head_dim = k_BmKD.size(3);
    rows_ = at::empty({count, keys_ * head_dim}, k_BmKD.options());
    columns_ = at::empty({count, columns_size(keys_, head_dim)}, k_BmKD.options());
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        pack_rows(bf16_rows(k_BmKD, i / heads_, i % heads_), at(rows_, i));
        const Bf16Rows values = bf16_rows(v_BmKD, i / heads_, i % heads_);
        for (int64_t t = 0; t < tile_count(keys_); ++t) {
          const Tile tile = tile_at(t, keys_);
          pack_columns(values, tile, at(columns_, i) + tile.begin * head_dim);
        }
      }
    });
  }

  Bf16Keys of(int64_t block, int64_t head) const {
    const int64_t i = block * heads_ + head;
    return {at(rows_, i), at(columns_, i), keys_};
  }

 private:
  static Bf16Word* at(const at::Tensor& packed, int64_t i) {
    return static_cast<Bf16Word*>(packed.mutable_data_ptr()) + i * packed.size(1);
  }

  int64_t keys_;
  int64_t heads_;
  at::Tensor rows_;
  at::Tensor columns_;
};

// The forward of tiles of queries, one after the other, with the memory for one.
class Bf16ForwardTile {
 public:
  Bf16ForwardTile(const VisibleKeys& visible, double softmax_scale, int64_t head_dim)
      : visible_(visible),
        scale_(static_cast<float>(softmax_scale)),
        head_dim_(head_dim),
        scratch_(Tile::kRows * (2 * head_dim + 2 * Tile::kRows + 3)),
        queries_paired_(words_of(scratch_.take(Tile::kRows * head_dim / 2))),
        weights_paired_(words_of(scratch_.take(Tile::kRows * Tile::kRows / 2))),
        out_columns_(scratch_.take(Tile::kRows * head_dim)),
        scores_(scratch_.take(Tile::kRows * Tile::kRows)),
        state_{scratch_.take(Tile::kRows), scratch_.take(Tile::kRows), scratch_.take(Tile::kRows)} {
  }

  // Writes the tile's rows of out and lse, which are those of the whole head.
  void run(const Bf16Rows& q, const Tile& queries, const Bf16Keys& keys, const OutputRows& out,
           const RowFigures<float>& lse) const {
    const int64_t width = queries.width();
    pair_columns(q, queries, queries_paired_);
    std::fill_n(state_.highest_w, width, kNothing);
    std::fill_n(state_.sum_w, width, 0.0f);
    std::fill_n(out_columns_, head_dim_ * width, 0.0f);
    const TileRange range = visible_tiles(visible_, queries, keys.count);
    for (int64_t t = range.begin; t < range.end; ++t) {
      const Tile tile = tile_at(t, keys.count);
      const int64_t at = tile.begin * head_dim_;
      product({tile.count, width, head_dim_, head_dim_}, false, keys.key_rows + at, queries_paired_,
              scores_);
      hide(visible_, tile, queries, scores_);
      softmax_step(scores_, tile.count, width, scale_, state_);
      pair_rounded(scores_, tile.count, width, weights_paired_);
      scale_columns(out_columns_, head_dim_, width, state_.correction_w);
      product({head_dim_, width, tile.count + tile.count % 2, tile.width()}, true,
              keys.value_columns + at, weights_paired_, out_columns_);
    }
    write(queries, out, lse);
  }

 private:
  void write(const Tile& queries, const OutputRows& out, const RowFigures<float>& lse) const {
    const int64_t width = queries.width();
    for (int64_t i = 0; i < queries.count; ++i) {
      lse[queries.begin + i] = scale_ * state_.highest_w[i] + std::log(state_.sum_w[i]);
    }
    float* const divisor = state_.correction_w;
    for (int64_t i = 0; i < width; ++i) {
      divisor[i] = state_.sum_w[i] == 0.0f ? 0.0f : 1.0f / state_.sum_w[i];
    }
    scale_columns(out_columns_, head_dim_, width, divisor);
    transpose(out_columns_, width, head_dim_, queries.count, 1.0f,
              out.data + queries.begin * out.stride, out.stride);
  }

  VisibleKeys visible_;
  float scale_;
  int64_t head_dim_;
  Scratch scratch_;
  Bf16Word* queries_paired_;
  Bf16Word* weights_paired_;
  float* out_columns_;
  float* scores_;
  OnlineSoftmax state_;
};

// What the backward reads and writes of a query head of a block.
struct Bf16QueryHead {
  Bf16Rows q, dout, out;
  Bf16Rows k, v;
  RowFigures<const float> lse;
  OutputRows dq, dk, dv;  // dk and dv: this query head's part
};

// The backward of query heads, one after the other, with the memory for one.
class Bf16BackwardHead {
 public:
  Bf16BackwardHead(const VisibleKeys& visible, double softmax_scale, int64_t queries, int64_t keys,
                   int64_t head_dim)
      : visible_(visible),
        scale_(static_cast<float>(softmax_scale)),
        queries_(queries),
        keys_(keys),
        head_dim_(head_dim),
        scratch_((4 * padded_rows(queries) + 3 * padded_rows(keys)) * head_dim / 2 +
                 2 * keys * head_dim + Tile::kRows * (4 * Tile::kRows + head_dim) +
                 2 * padded_rows(queries)) {
    for (Bf16Word** of_queries : {&q_columns_, &dout_columns_, &q_paired_, &dout_paired_}) {
      *of_queries = words_of(scratch_.take(padded_rows(queries) * head_dim / 2));
    }
    for (Bf16Word** of_keys : {&k_rows_, &v_rows_, &k_columns_}) {
      *of_keys = words_of(scratch_.take(padded_rows(keys) * head_dim / 2));
    }
    for (float** sums : {&dk_rows_, &dv_rows_}) {
      *sums = scratch_.take(keys * head_dim);
    }
    dq_columns_ = scratch_.take(Tile::kRows * head_dim);
    for (float** tile : {&scores_, &dscores_}) {
      *tile = scratch_.take(Tile::kRows * Tile::kRows);
    }
    for (Bf16Word** tile : {&weights_, &dscores_rounded_, &dscores_paired_}) {
      *tile = words_of(scratch_.take(Tile::kRows * Tile::kRows / 2));
    }
    for (float** figures : {&lse_, &delta_}) {
      *figures = scratch_.take(padded_rows(queries));
    }
  }

  void run(const Bf16QueryHead& head) const {
    pack(head);
    for (int64_t t = 0; t < tile_count(queries_); ++t) {
      const Tile queries = tile_at(t, queries_);
      std::fill_n(dq_columns_, head_dim_ * queries.width(), 0.0f);
      const TileRange range = visible_tiles(visible_, queries, keys_);
      for (int64_t key_tile = range.begin; key_tile < range.end; ++key_tile) {
        add_tile(queries, tile_at(key_tile, keys_));
      }
      transpose(dq_columns_, queries.width(), head_dim_, queries.count, scale_,
                head.dq.data + queries.begin * head.dq.stride, head.dq.stride);
    }
    for (int64_t row = 0; row < keys_; ++row) {
      const float* const dk_row = dk_rows_ + row * head_dim_;
      std::transform(dk_row, dk_row + head_dim_, head.dk.data + row * head.dk.stride,
                     [this](float value) { return scale_ * value; });
      std::copy_n(dv_rows_ + row * head_dim_, head_dim_, head.dv.data + row * head.dv.stride);
    }
  }

 private:
  void pack(const Bf16QueryHead& head) const {
    for (int64_t t = 0; t < tile_count(queries_); ++t) {
      const Tile tile = tile_at(t, queries_);
      const int64_t at = tile.begin * head_dim_;
      pair_columns(head.q, tile, q_columns_ + at);
      pair_columns(head.dout, tile, dout_columns_ + at);
      pair_rows(head.q, tile, q_paired_ + at);
      pair_rows(head.dout, tile, dout_paired_ + at);
    }
    pack_rows(head.k, k_rows_);
    pack_rows(head.v, v_rows_);
    for (int64_t t = 0; t < tile_count(keys_); ++t) {
      const Tile tile = tile_at(t, keys_);
      pack_columns(head.k, tile, k_columns_ + tile.begin * head_dim_);
    }
    std::fill_n(dk_rows_, keys_ * head_dim_, 0.0f);
    std::fill_n(dv_rows_, keys_ * head_dim_, 0.0f);
    set_row_figures(head);
  }

  // lse, and delta = sum(dout out), of each query. Padded ones take no part: their lse is +inf. So
  // do those that see no key, whose lse is -inf.
  void set_row_figures(const Bf16QueryHead& head) const {
    const int64_t size = padded_rows(queries_);
    std::fill_n(lse_, size, -kNothing);
    std::fill_n(delta_, size, 0.0f);
    for (int64_t i = 0; i < queries_; ++i) {
      if (head.lse[i] != kNothing) {
        lse_[i] = head.lse[i];
      }
    }
    row_products(head.dout, head.out, delta_);
  }

  void add_tile(const Tile& queries, const Tile& keys) const {
    const int64_t q_at = queries.begin * head_dim_, k_at = keys.begin * head_dim_;
    const int64_t width = queries.width();
    const ProductShape into_scores{keys.count, width, head_dim_, head_dim_};
    product(into_scores, false, k_rows_ + k_at, q_columns_ + q_at, scores_);
    product(into_scores, false, v_rows_ + k_at, dout_columns_ + q_at, dscores_);
    hide(visible_, keys, queries, scores_);
    softmax_backward(scores_, dscores_, keys.count, width, scale_, lse_ + queries.begin,
                     delta_ + queries.begin);
    round_tile(scores_, keys.count, width, weights_);
    round_tile(dscores_, keys.count, width, dscores_rounded_);
    pair_rounded(dscores_, keys.count, width, dscores_paired_);
    const ProductShape into_keys{keys.count, head_dim_, width, width};
    product(into_keys, true, weights_, dout_paired_ + q_at, dv_rows_ + k_at);
    product(into_keys, true, dscores_rounded_, q_paired_ + q_at, dk_rows_ + k_at);
    product({head_dim_, width, keys.count + keys.count % 2, keys.width()}, true, k_columns_ + k_at,
            dscores_paired_, dq_columns_);
  }

  VisibleKeys visible_;
  float scale_;
  int64_t queries_;
  int64_t keys_;
  int64_t head_dim_;
  Scratch scratch_;
  Bf16Word *q_columns_, *dout_columns_, *q_paired_, *dout_paired_;
  Bf16Word *k_rows_, *v_rows_, *k_columns_;
  float *dk_rows_, *dv_rows_, *dq_columns_;
  float *scores_, *dscores_;
  Bf16Word *weights_, *dscores_rounded_, *dscores_paired_;
  float *lse_, *delta_;
};

// Parts of query heads, summed in their order over the heads that share keys and values.
at::Tensor summed_over_groups(const at::Tensor& x_BmHD, int64_t kv_heads) {
  return x_BmHD.size(2) == kv_heads ? x_BmHD : x_BmHD.unflatten(2, {kv_heads, -1}).sum(3);
}

}  // namespace

PartialAttention tiled_attention_bf16(const at::Tensor& q_BnHD, const at::Tensor& k_BmKD,
                                      const at::Tensor& v_BmKD, const VisibleKeys& visible,
                                      double softmax_scale) {
  const at::Tensor q = with_word_rows(q_BnHD);
  const Bf16KeyHeads keys(with_word_rows(k_BmKD), with_word_rows(v_BmKD));
  const int64_t heads = q.size(2), tiles = tile_count(q.size(1));
  const int64_t group = heads / k_BmKD.size(2);
  const at::TensorOptions sums = q.options().dtype(at::kFloat);
  PartialAttention result{at::empty(q.sizes(), sums), at::empty(q.sizes().slice(0, 3), sums)};
  float* const lse = result.lse.mutable_data_ptr<float>();
  at::parallel_for(0, q.size(0) * heads * tiles, 1, [&](int64_t begin, int64_t end) {
    const Bf16ForwardTile tile(visible, softmax_scale, q.size(3));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / tiles / heads, head = i / tiles % heads;
      tile.run(bf16_rows(q, block, head), tile_at(i % tiles, q.size(1)),
               keys.of(block, head / group), output_rows(result.out, block, head),
               {lse + block * q.size(1) * heads + head, heads});
    }
    end_products();
  });
  return result;
}

BlockGradients tiled_attention_bf16_backward(const at::Tensor& dout_BnHD, const at::Tensor& q_BnHD,
                                             const at::Tensor& k_BmKD, const at::Tensor& v_BmKD,
                                             const at::Tensor& out_BnHD, const at::Tensor& lse_BnH,
                                             const VisibleKeys& visible, double softmax_scale) {
  const at::Tensor q = with_word_rows(q_BnHD), k = with_word_rows(k_BmKD);
  const at::Tensor v = with_word_rows(v_BmKD), out = with_word_rows(out_BnHD);
  const at::Tensor dout = with_word_rows(dout_BnHD);
  const int64_t heads = q.size(2), kv_heads = k.size(2), group = heads / kv_heads;
  const at::TensorOptions sums = q.options().dtype(at::kFloat);
  at::Tensor dq = at::empty(q.sizes(), sums);
  at::Tensor dk = at::empty({k.size(0), k.size(1), heads, k.size(3)}, sums);
  at::Tensor dv = at::empty(dk.sizes(), sums);
  const float* const lse = lse_BnH.const_data_ptr<float>();
  at::parallel_for(0, q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    const Bf16BackwardHead work(visible, softmax_scale, q.size(1), k.size(1), q.size(3));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / heads, head = i % heads;
      work.run({bf16_rows(q, block, head),
                bf16_rows(dout, block, head),
                bf16_rows(out, block, head),
                bf16_rows(k, block, head / group),
                bf16_rows(v, block, head / group),
                {lse + block * lse_BnH.stride(0) + head * lse_BnH.stride(2), lse_BnH.stride(1)},
                output_rows(dq, block, head),
                output_rows(dk, block, head),
                output_rows(dv, block, head)});
    }
    end_products();
  });
  return {dq, summed_over_groups(dk, kv_heads), summed_over_groups(dv, kv_heads)};
}

}  // namespace ringside::sp
