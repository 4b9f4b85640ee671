#include "sp/attention/tiled_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sp/attention/attention_tiles.h"
#include "sp/attention/key_parts.h"
#include "sp/attention/tile_math.h"

namespace ringside::sp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor with_dense_rows(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

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

// One thread's share of the backward of all key/value heads of a call: a range of the key tiles.
struct KeyPart {
  TileRange tiles;
  int64_t index = 0;
  int64_t count = 1;
  // Of all parts: sums of dq in the layout of pack_columns(), for each query head of each block,
  // `columns` floats apart. Unused in the only part.
  PartProgress* progress = nullptr;
  float* dq_columns = nullptr;
  int64_t columns = 0;

  bool alone() const { return count == 1; }
  bool last() const { return index == count - 1; }
};

// The backward of key/value heads, one after the other, with the memory for one and its packed
// operands.
class BackwardHead {
 public:
  BackwardHead(const VisibleKeys& visible, double softmax_scale, int64_t queries, int64_t keys,
               int64_t head_dim, const KeyPart& part)
      : visible_(visible),
        scale_(static_cast<float>(softmax_scale)),
        queries_(queries),
        keys_(keys),
        head_dim_(head_dim),
        part_(part),
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

  // Adds a query head's share to the gradients of the keys and values. The last part of the keys
  // writes the head's own. number: of the head in all blocks.
  void add(const QueryHead& head, int64_t number) const {
    pack_rows(head.q, q_rows_);
    pack_columns(head.q, q_columns_);
    pack_rows(head.dout, dout_rows_);
    pack_columns(head.dout, dout_columns_);
    set_row_figures(head);
    const int64_t tiles = tile_count(queries_);
    for (int64_t t = 0; t < tiles; ++t) {
      const Tile queries = tile_at(t, queries_);
      float* const dq = dq_columns_of(number, queries);
      if (part_.index == 0) {
        std::fill_n(dq, head_dim_ * queries.width(), 0.0f);
      } else {
        part_.progress->await(part_.index, number * tiles + t);
      }
      const TileRange range = visible_tiles(visible_, queries, keys_);
      const int64_t end = std::min(range.end, part_.tiles.end);
      for (int64_t k = std::max(range.begin, part_.tiles.begin); k < end; ++k) {
        add_tile(queries, tile_at(k, keys_), dq);
      }
      if (part_.last()) {
        transpose(dq, queries.width(), head_dim_, queries.count, scale_,
                  head.dq.data + queries.begin * head.dq.stride, head.dq.stride);
      } else {
        part_.progress->finish(part_.index, number * tiles + t);
      }
    }
  }

  // Writes the gradients of the part's keys and values.
  void end(const OutputRows& dk, const OutputRows& dv) const {
    const int64_t last_row = std::min(part_.tiles.end * Tile::kRows, keys_);
    for (int64_t row = part_.tiles.begin * Tile::kRows; row < last_row; ++row) {
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

  float* dq_columns_of(int64_t number, const Tile& queries) const {
    return part_.alone() ? dq_columns_
                         : part_.dq_columns + number * part_.columns + queries.begin * head_dim_;
  }

  void add_tile(const Tile& queries, const Tile& keys, float* dq_columns) const {
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
            dq_columns);
  }

  VisibleKeys visible_;
  float scale_;
  int64_t queries_;
  int64_t keys_;
  int64_t head_dim_;
  KeyPart part_;
  Scratch scratch_;
  float *q_rows_, *dout_rows_, *k_rows_, *v_rows_, *dk_rows_, *dv_rows_;
  float *q_columns_, *dout_columns_, *k_columns_, *dq_columns_;
  float *scores_, *dscores_;
  float *lse_, *delta_;
};

// A head's tiles in turn from both ends: those that see much beside those that see little, so that
// threads that take runs of them are about as busy.
int64_t turn_of(int64_t index, int64_t tiles) {
  return index % 2 == 0 ? index / 2 : tiles - 1 - index / 2;
}

// Calls run(part, begin, end) for all key/value heads of a call, so that the threads are about as
// busy: each takes some heads, or a part of the keys of every head.
template <class Run>
void run_in_parts(const Run& run, const VisibleKeys& visible, const at::Tensor& q_BnHD,
                  const at::Tensor& k_BmKD) {
  const int64_t queries = q_BnHD.size(1), keys = k_BmKD.size(1);
  const int64_t heads = k_BmKD.size(0) * k_BmKD.size(2);
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t parts = key_part_count(heads, threads, keys);
  if (parts == 1) {
    at::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
      run(KeyPart{.tiles = {0, tile_count(keys)}}, begin, end);
    });
    return;
  }
  const std::vector<TileRange> ranges = key_parts(visible, queries, keys, parts);
  const int64_t columns = columns_size(queries, q_BnHD.size(3));
  const at::Tensor sums = at::empty({q_BnHD.size(0) * q_BnHD.size(2) * columns}, q_BnHD.options());
  PartProgress progress(parts);
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      try {
        run(KeyPart{ranges[part], part, parts, &progress, sums.mutable_data_ptr<float>(), columns},
            0, heads);
      } catch (...) {
        progress.finish(part, std::numeric_limits<int64_t>::max() - 1);  // nobody waits for it
        throw;
      }
    }
  });
}

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
      tile.run(head_rows(q, block, head), tile_at(turn_of(i % tiles, tiles), q.size(1)),
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
  const auto run = [&](const KeyPart& part, int64_t begin, int64_t end) {
    const BackwardHead work(visible, softmax_scale, q.size(1), k.size(1), q.size(3), part);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / kv_heads, kv_head = i % kv_heads;
      work.begin(head_rows(k, block, kv_head), head_rows(v, block, kv_head));
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        work.add({head_rows(q, block, head),
                  head_rows(dout, block, head),
                  head_rows(out, block, head),
                  {lse + block * lse_BnH.stride(0) + head * lse_BnH.stride(2), lse_BnH.stride(1)},
                  output_rows(grads.dq_BnHD, block, head)},
                 block * q.size(2) + head);
      }
      work.end(output_rows(grads.dk_BmKD, block, kv_head),
               output_rows(grads.dv_BmKD, block, kv_head));
    }
  };
  run_in_parts(run, visible, q, k);
  return grads;
}

}  // namespace ringside::sp
