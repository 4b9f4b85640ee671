#include "sp/attention/tiled_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "sp/attention/attention_tiles.h"
#include "sp/attention/tile_math.h"

namespace ringside::sp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor with_dense_rows(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// Where the rows of a head are written.
struct OutputRows {
  float* data;
  int64_t stride;
};

// x_BnHD: without gaps.
OutputRows output_rows(at::Tensor& x_BnHD, int64_t block, int64_t head) {
  const int64_t heads = x_BnHD.size(2), head_dim = x_BnHD.size(3);
  return {x_BnHD.mutable_data_ptr<float>() + (block * x_BnHD.size(1) * heads + head) * head_dim,
          heads * head_dim};
}

// A number of each row of one head of one block, as they lie in a tensor.
template <class T>
struct RowFigures {
  T* data;
  int64_t stride;
  T& operator[](int64_t row) const { return data[row * stride]; }
};

// Memory of one thread, taken in pieces.
class Scratch {
 public:
  explicit Scratch(int64_t floats) : memory_(at::empty({floats}, at::kFloat)) {
    next_ = memory_.mutable_data_ptr<float>();
  }
  float* take(int64_t floats) {
    next_ += floats;
    return next_ - floats;
  }

 private:
  at::Tensor memory_;
  float* next_;
};

// A key/value head of a block, packed for the forward.
struct PackedKeys {
  const float* key_rows;
  const float* value_columns;
  int64_t count;
};

// All of a call's.
class PackedKeyHeads {
 public:
  PackedKeyHeads(const at::Tensor& k_BmKD, const at::Tensor& v_BmKD)
      : keys_(k_BmKD.size(1)), heads_(k_BmKD.size(2)) {
    const int64_t count = k_BmKD.size(0) * heads_;
    rows_ = at::empty({count, keys_ * k_BmKD.size(3)}, k_BmKD.options());
    columns_ = at::empty({count, columns_size(keys_, k_BmKD.size(3))}, k_BmKD.options());
    float* const rows = rows_.mutable_data_ptr<float>();
    float* const columns = columns_.mutable_data_ptr<float>();
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        pack_rows(head_rows(k_BmKD, i / heads_, i % heads_), rows + i * rows_.size(1));
        pack_columns(head_rows(v_BmKD, i / heads_, i % heads_), columns + i * columns_.size(1));
      }
    });
  }

  PackedKeys of(int64_t block, int64_t head) const {
    const int64_t i = block * heads_ + head;
    return {rows_.const_data_ptr<float>() + i * rows_.size(1),
            columns_.const_data_ptr<float>() + i * columns_.size(1), keys_};
  }

 private:
  int64_t keys_;
  int64_t heads_;
  at::Tensor rows_;
  at::Tensor columns_;
};

// The forward of tiles of queries, one after the other, with the memory for one.
class ForwardTile {
 public:
  ForwardTile(const VisibleKeys& visible, double softmax_scale, int64_t head_dim)
      : visible_(visible),
        scale_(static_cast<float>(softmax_scale)),
        head_dim_(head_dim),
        scratch_(Tile::kRows * (2 * head_dim + Tile::kRows + 3)),
        query_columns_(scratch_.take(Tile::kRows * head_dim)),
        out_columns_(scratch_.take(Tile::kRows * head_dim)),
        scores_(scratch_.take(Tile::kRows * Tile::kRows)),
        state_{scratch_.take(Tile::kRows), scratch_.take(Tile::kRows), scratch_.take(Tile::kRows)} {
  }

  // Writes the tile's rows of out and lse, which are those of the whole head.
  void run(const HeadRows& q, const Tile& queries, const PackedKeys& keys, const OutputRows& out,
           const RowFigures<float>& lse) const {
    const int64_t width = queries.width();
    pack_columns(q, queries, query_columns_);
    std::fill_n(state_.highest_w, width, -kInfinity);
    std::fill_n(state_.sum_w, width, 0.0f);
    std::fill_n(out_columns_, head_dim_ * width, 0.0f);
    const TileRange range = visible_tiles(visible_, queries, keys.count);
    for (int64_t t = range.begin; t < range.end; ++t) {
      const Tile tile = tile_at(t, keys.count);
      const int64_t at = tile.begin * head_dim_;
      product({tile.count, width, head_dim_, head_dim_}, false, keys.key_rows + at, query_columns_,
              scores_);
      hide(visible_, tile, queries, scores_);
      softmax_step(scores_, tile.count, width, scale_, state_);
      scale_columns(out_columns_, head_dim_, width, state_.correction_w);
      product({head_dim_, width, tile.count, tile.width()}, true, keys.value_columns + at, scores_,
              out_columns_);
    }
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

 private:
  VisibleKeys visible_;
  float scale_;
  int64_t head_dim_;
  Scratch scratch_;
  float* query_columns_;
  float* out_columns_;
  float* scores_;
  OnlineSoftmax state_;
};

// What the backward reads and writes of a query head of a block.
struct QueryHead {
  HeadRows q;
  HeadRows dout;
  HeadRows out;
  RowFigures<const float> lse;
  OutputRows dq;
};

// The backward of key/value heads, one after the other, with the memory for one and its packed
// operands.
class BackwardHead {
 public:
  BackwardHead(const VisibleKeys& visible, double softmax_scale, int64_t queries, int64_t keys,
               int64_t head_dim)
      : visible_(visible),
        scale_(static_cast<float>(softmax_scale)),
        queries_(queries),
        keys_(keys),
        head_dim_(head_dim),
        scratch_(2 * queries * head_dim + 2 * columns_size(queries, head_dim) +
                 4 * keys * head_dim + columns_size(keys, head_dim) +
                 Tile::kRows * (2 * Tile::kRows + head_dim) + 2 * columns_size(queries, 1)) {
    for (float** rows : {&q_rows_, &dout_rows_}) {
      *rows = scratch_.take(queries * head_dim);
    }
    for (float** columns : {&q_columns_, &dout_columns_}) {
      *columns = scratch_.take(columns_size(queries, head_dim));
    }
    for (float** rows : {&k_rows_, &v_rows_, &dk_rows_, &dv_rows_}) {
      *rows = scratch_.take(keys * head_dim);
    }
    k_columns_ = scratch_.take(columns_size(keys, head_dim));
    dq_columns_ = scratch_.take(Tile::kRows * head_dim);
    for (float** tile : {&scores_, &dscores_}) {
      *tile = scratch_.take(Tile::kRows * Tile::kRows);
    }
    for (float** figures : {&lse_, &delta_}) {
      *figures = scratch_.take(columns_size(queries, 1));
    }
  }

  void begin(const HeadRows& k, const HeadRows& v) const {
    pack_rows(k, k_rows_);
    pack_columns(k, k_columns_);
    pack_rows(v, v_rows_);
    std::fill_n(dk_rows_, keys_ * head_dim_, 0.0f);
    std::fill_n(dv_rows_, keys_ * head_dim_, 0.0f);
  }

  // Adds a query head's share to the gradients of the keys and values, and writes its own.
  void add(const QueryHead& head) const {
    pack_rows(head.q, q_rows_);
    pack_columns(head.q, q_columns_);
    pack_rows(head.dout, dout_rows_);
    pack_columns(head.dout, dout_columns_);
    set_row_figures(head);
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
  }

  void end(const OutputRows& dk, const OutputRows& dv) const {
    for (int64_t row = 0; row < keys_; ++row) {
      const float* const dk_row = dk_rows_ + row * head_dim_;
      std::transform(dk_row, dk_row + head_dim_, dk.data + row * dk.stride,
                     [this](float value) { return scale_ * value; });
      std::copy_n(dv_rows_ + row * head_dim_, head_dim_, dv.data + row * dv.stride);
    }
  }

 private:
  // lse, and delta = sum(dout out), of each query. Padded ones take no part: their lse is +inf. So
  // do those that see no key, whose lse is -inf.
  void set_row_figures(const QueryHead& head) const {
    const int64_t size = columns_size(queries_, 1);
    std::fill_n(lse_, size, kInfinity);
    std::fill_n(delta_, size, 0.0f);
    for (int64_t i = 0; i < queries_; ++i) {
      if (head.lse[i] != -kInfinity) {
        lse_[i] = head.lse[i];
      }
    }
    row_products(head.dout.data, head.dout.stride, head.out.data, head.out.stride, queries_,
                 head_dim_, delta_);
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
    const ProductShape into_keys{keys.count, head_dim_, queries.count, width};
    product(into_keys, true, scores_, dout_rows_ + q_at, dv_rows_ + k_at);
    product(into_keys, true, dscores_, q_rows_ + q_at, dk_rows_ + k_at);
    product({head_dim_, width, keys.count, keys.width()}, true, k_columns_ + k_at, dscores_,
            dq_columns_);
  }

  VisibleKeys visible_;
  float scale_;
  int64_t queries_;
  int64_t keys_;
  int64_t head_dim_;
  Scratch scratch_;
  float *q_rows_, *dout_rows_, *k_rows_, *v_rows_, *dk_rows_, *dv_rows_;
  float *q_columns_, *dout_columns_, *k_columns_, *dq_columns_;
  float *scores_, *dscores_;
  float *lse_, *delta_;
};

}  // namespace

PartialAttention tiled_attention(const at::Tensor& q_BnHD, const at::Tensor& k_BmKD,
                                 const at::Tensor& v_BmKD, const VisibleKeys& visible,
                                 double softmax_scale) {
  const at::Tensor q = with_dense_rows(q_BnHD);
  const PackedKeyHeads keys(with_dense_rows(k_BmKD), with_dense_rows(v_BmKD));
  const int64_t heads = q.size(2), tiles = tile_count(q.size(1));
  const int64_t group = heads / k_BmKD.size(2);
  PartialAttention result{at::empty(q.sizes(), q.options()),
                          at::empty(q.sizes().slice(0, 3), q.options())};
  float* const lse = result.lse.mutable_data_ptr<float>();
  at::parallel_for(0, q.size(0) * heads * tiles, 1, [&](int64_t begin, int64_t end) {
    const ForwardTile tile(visible, softmax_scale, q.size(3));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / tiles / heads, head = i / tiles % heads;
      tile.run(head_rows(q, block, head), tile_at(i % tiles, q.size(1)),
               keys.of(block, head / group), output_rows(result.out, block, head),
               {lse + block * q.size(1) * heads + head, heads});
    }
  });
  return result;
}

BlockGradients tiled_attention_backward(const at::Tensor& dout_BnHD, const at::Tensor& q_BnHD,
                                        const at::Tensor& k_BmKD, const at::Tensor& v_BmKD,
                                        const at::Tensor& out_BnHD, const at::Tensor& lse_BnH,
                                        const VisibleKeys& visible, double softmax_scale) {
  const at::Tensor q = with_dense_rows(q_BnHD), k = with_dense_rows(k_BmKD);
  const at::Tensor v = with_dense_rows(v_BmKD), out = with_dense_rows(out_BnHD);
  const at::Tensor dout = with_dense_rows(dout_BnHD);
  const int64_t kv_heads = k.size(2), group = q.size(2) / kv_heads;
  BlockGradients grads{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                       at::empty(v.sizes(), v.options())};
  const float* const lse = lse_BnH.const_data_ptr<float>();
  at::parallel_for(0, q.size(0) * kv_heads, 1, [&](int64_t begin, int64_t end) {
    const BackwardHead work(visible, softmax_scale, q.size(1), k.size(1), q.size(3));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / kv_heads, kv_head = i % kv_heads;
      work.begin(head_rows(k, block, kv_head), head_rows(v, block, kv_head));
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        work.add({head_rows(q, block, head),
                  head_rows(dout, block, head),
                  head_rows(out, block, head),
                  {lse + block * lse_BnH.stride(0) + head * lse_BnH.stride(2), lse_BnH.stride(1)},
                  output_rows(grads.dq_BnHD, block, head)});
      }
      work.end(output_rows(grads.dk_BmKD, block, kv_head),
               output_rows(grads.dv_BmKD, block, kv_head));
    }
  });
  return grads;
}

}  // namespace ringside::sp
