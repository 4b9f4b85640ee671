#include "engine/nn/delta_block.h"

#include <ATen/ATen.h>

namespace ringside::engine {
namespace {

constexpr int64_t kC = ChunkTables::kChunk;
// Rows of the blocks on the diagonal that are inverted in whole matrices; those of a chunk are
// inverted from them.
constexpr int64_t kSmall = 16;
static_assert(kC % kSmall == 0);

// The blocks of n rows on the diagonal: [B, C, C] -> [B, C / n, n, n], a view.
at::Tensor diagonal_blocks(const at::Tensor& x_BCC, int64_t n) {
  const int64_t blocks = x_BCC.size(1) / n;
  return x_BCC.view({x_BCC.size(0), blocks, n, blocks, n}).diagonal(0, 1, 3).permute({0, 3, 1, 2});
}

// (I + lower)^-1 of strictly lower triangular matrices [b, kSmall, kSmall]. Inverts blocks of 2s
// rows from those of s: [A 0; C D]^-1 = [A^-1 0; -D^-1 C A^-1 D^-1].
at::Tensor small_inverse_of(const at::Tensor& lower, const std::vector<at::Tensor>& masks) {
  at::Tensor inverse = (lower * masks[0]).neg_();
  inverse.diagonal(0, 1, 2).fill_(1);
  for (std::size_t i = 1; i < masks.size(); ++i) {
    inverse = at::baddbmm(inverse, inverse, (lower * masks[i]).bmm(inverse), 1, -1);
  }
  return inverse;
}

// The same of [B, C, C]. Its larger blocks are multiplied by themselves, without the zeros around
// them: with products of whole matrices the rule took 1.2 to 1.4 times as long.
at::Tensor inverse_of(const at::Tensor& lower, const std::vector<at::Tensor>& masks) {
  at::Tensor inverse = at::zeros_like(lower);
  const at::Tensor small = diagonal_blocks(lower, kSmall);
  diagonal_blocks(inverse, kSmall)
      .copy_(small_inverse_of(small.reshape({-1, kSmall, kSmall}), masks).view(small.sizes()));
  for (int64_t s = kSmall; s < kC; s *= 2) {
    const at::Tensor of_both = diagonal_blocks(inverse, 2 * s);
    const auto half = [s](const at::Tensor& blocks, int64_t row, int64_t column) {
      return blocks.narrow(2, row * s, s).narrow(3, column * s, s);
    };
    const at::Tensor across = half(diagonal_blocks(lower, 2 * s), 1, 0);
    half(of_both, 1, 0)
        .copy_(at::matmul(half(of_both, 1, 1), at::matmul(across, half(of_both, 0, 0))).neg_());
  }
  return inverse;
}

}  // namespace

at::Tensor BlockRows::take(const at::Tensor& x_ShD, int64_t repeats, at::ScalarType dtype) const {
  const int64_t h = x_ShD.size(1), d = x_ShD.size(2);
  at::Tensor taken = x_ShD.index_select(0, slots_.row).to(dtype);
  if (slots_.empty.defined()) {
    taken.masked_fill_(slots_.empty.view({-1, 1, 1}), 0);
  }
  return taken.view({count_, kC, h, 1, d})
      .expand({count_, kC, h, repeats, d})
      .permute({0, 2, 3, 1, 4})
      .reshape({count_ * h * repeats, kC, d});
}

at::Tensor BlockRows::take(const at::Tensor& x_Sh, at::ScalarType dtype) const {
  return take(x_Sh.unsqueeze(2), 1, dtype).squeeze(2);
}

void BlockRows::put(at::Tensor& to_ShD, const at::Tensor& x, int64_t repeats) const {
  const int64_t h = to_ShD.size(1), d = to_ShD.size(2);
  at::Tensor slots = x.view({count_, h, repeats, kC, d});
  slots = repeats == 1 ? slots.squeeze(2) : slots.sum(2);
  slots = slots.transpose(1, 2).reshape({count_ * kC, h, d});
  if (slots_.used.defined()) {
    slots = slots.index_select(0, slots_.used);
  }
  to_ShD.index_copy_(0, slots_.used_row, slots.to(to_ShD.scalar_type()));
}

void BlockRows::put(at::Tensor& to_Sh, const at::Tensor& x) const {
  at::Tensor to = to_Sh.unsqueeze(2);
  put(to, x.unsqueeze(2), 1);
}

std::vector<at::Tensor> half_masks(const at::TensorOptions& options) {
  const at::Tensor i = at::arange(kSmall, options.dtype(at::kLong));
  std::vector<at::Tensor> masks;
  for (int64_t s = 1; s < kSmall; s *= 2) {
    const at::Tensor half = i.floor_divide(s), pair = i.floor_divide(2 * s);
    const at::Tensor second = half.remainder(2);
    masks.push_back((pair.unsqueeze(1).eq(pair.unsqueeze(0)))
                        .logical_and(second.unsqueeze(1) > second.unsqueeze(0))
                        .to(options.dtype()));
  }
  return masks;
}

DeltaBlock load_block(const DeltaRows& rows, const BlockRows& slots,
                      const std::vector<at::Tensor>& masks) {
  const at::ScalarType dtype = masks.front().scalar_type();
  const int64_t repeats = sizes_of(rows).repeats();
  DeltaBlock b;
  b.k = slots.take(rows.k_SkK, repeats, dtype);
  b.v = slots.take(rows.v_ShV, 1, dtype);
  b.beta = slots.take(rows.beta_Sh, dtype).unsqueeze(2);
  const at::Tensor sum = slots.take(rows.g_Sh, dtype).cumsum(1);
  b.decay = sum.exp().unsqueeze(2);
  const at::Tensor total = sum.narrow(1, kC - 1, 1);
  b.rest = (total - sum).exp_().unsqueeze(2);
  b.whole = total.exp().unsqueeze(2);
  // Masked before exp: above the diagonal it would overflow.
  b.between = (sum.unsqueeze(2) - sum.unsqueeze(1)).tril_().exp_().tril_();
  b.key_product = b.k.bmm(b.k.transpose(1, 2));
  b.lower = (b.key_product * b.between).mul_(b.beta).tril_(-1);
  b.inverse = inverse_of(b.lower, masks);
  b.k_decayed = b.k * (b.beta * b.decay);
  b.transition = b.inverse.bmm(b.k_decayed);
  b.k_rest = b.k * b.rest;
  if (rows.q_SkK.defined()) {
    b.q = slots.take(rows.q_SkK, repeats, dtype);
    b.q_decayed = b.q * b.decay;
    b.attended = b.q.bmm(b.k.transpose(1, 2)).mul_(b.between);
  }
  return b;
}

DeltaGradients block_gradients(const DeltaBlock& b, const at::Tensor& start,
                               const at::Tensor& writes, const at::Tensor& d_out,
                               const at::Tensor& d_writes, const at::Tensor& d_end) {
  DeltaGradients d;
  // writes = inverse (beta v - k_decayed start)
  const at::Tensor d_right = b.inverse.transpose(1, 2).bmm(d_writes);
  const at::Tensor d_lower = d_right.bmm(writes.transpose(1, 2)).neg_().tril_(-1);
  const at::Tensor d_k_decayed = d_right.bmm(start.transpose(1, 2)).neg_();
  const at::Tensor d_k_rest = writes.bmm(d_end.transpose(1, 2));
  d.v = d_right * b.beta;
  const at::Tensor d_product = (d_lower * b.between).mul_(b.beta);
  d.k = (d_product + d_product.transpose(1, 2)).bmm(b.k);
  d.k.addcmul_(d_k_decayed, b.beta * b.decay).addcmul_(d_k_rest, b.rest);
  d.beta = (d_lower * b.key_product).mul_(b.between).sum(2);
  d.beta += (d_right * b.v).sum(2);
  d.beta += (d_k_decayed * b.k).mul_(b.decay).sum(2);
  // Gradients of the sums of g: exponents of between, decay, rest and whole.
  at::Tensor pairs = d_lower * b.lower;
  at::Tensor d_sum = (d_k_decayed * b.k_decayed).sum(2);
  const at::Tensor d_rest = (d_k_rest * b.k_rest).sum(2);
  if (d_out.defined()) {
    const at::Tensor d_q_decayed = d_out.bmm(start.transpose(1, 2));
    const at::Tensor d_attended = d_out.bmm(writes.transpose(1, 2)).tril_();
    const at::Tensor d_scores = d_attended * b.between;
    d.q = (d_q_decayed * b.decay).baddbmm_(d_scores, b.k);
    d.k.baddbmm_(d_scores.transpose(1, 2), b.q);
    d_sum += (d_q_decayed * b.q_decayed).sum(2);
    pairs.addcmul_(d_attended, b.attended);
  }
  d_sum += pairs.sum(2) - pairs.sum(1) - d_rest;
  d_sum.select(1, kC - 1) +=
      d_rest.sum(1) + (d_end * start).sum(at::IntArrayRef{1, 2}) * b.whole.view({-1});
  d.g = d_sum.flip(1).cumsum(1).flip(1);
  return d;
}

}  // namespace ringside::engine
