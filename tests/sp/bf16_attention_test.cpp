// The CPU's bf16 kernel over tiles. Oracle: ATen's flash attention in fp64 of the same bf16
// operands, through block_attention; beside it ATen's in bf16, which transformers calls. Guards:
// rows and keys at the edges of tiles and of pairs, windows, queries that see no key, heads that
// share keys, strided operands, accuracy, bits that do not depend on threads.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "sp/attention/bf16_tiles.h"
#include "sp/attention/block_attention.h"
#include "tests/support/catch.h"

namespace ringside::bf16_attention_test {
namespace {

struct Operands {
  at::Tensor q, k, v, dout;
};

// out, dq, dk, dv and lse.
using Results = std::vector<at::Tensor>;

Operands random_operands(int64_t blocks, int64_t queries, int64_t keys, int64_t heads,
                         int64_t kv_heads, int64_t head_dim) {
  const auto random = [&](int64_t rows, int64_t of_heads) {
    return at::randn({blocks, rows, of_heads, head_dim}).to(at::kBFloat16);
  };
  return {random(queries, heads), random(keys, kv_heads), random(keys, kv_heads),
          random(queries, heads)};
}

Results attention_in(at::ScalarType dtype, const Operands& x, const sp::VisibleKeys& visible) {
  const auto as = [&](const at::Tensor& t) { return t.to(dtype); };
  const double scale = 1.0 / std::sqrt(static_cast<double>(x.q.size(3)));
  const auto mask = sp::block_mask(visible, x.q.size(1), x.k.size(1), dtype);
  const auto forward = sp::block_attention(as(x.q), as(x.k), as(x.v), mask, scale);
  const auto grads = sp::block_attention_backward(as(x.dout), as(x.q), as(x.k), as(x.v),
                                                  as(forward.out), forward.lse, mask, scale);
  return {forward.out, grads.dq_BnHD, grads.dk_BmKD, grads.dv_BmKD, forward.lse};
}

// As transformers has it: ATen's kernel in bf16, causal.
Results atens(const Operands& x) {
  const auto heads_first = [](const at::Tensor& t) {
    return t.transpose(1, 2).detach().set_requires_grad(true);
  };
  const at::Tensor q = heads_first(x.q), k = heads_first(x.k), v = heads_first(x.v);
  const at::Tensor out =
      at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, std::nullopt, true);
  out.backward(x.dout.transpose(1, 2));
  const auto back = [](const at::Tensor& t) { return t.transpose(1, 2); };
  return {back(out.detach()), back(q.grad()), back(k.grad()), back(v.grad())};
}

// Root of the mean square of the difference.
double distance(const at::Tensor& x, const at::Tensor& oracle) {
  return (x.to(at::kDouble) - oracle).square().mean().sqrt().item<double>();
}

// Roundings of bf16, whose largest in a sum is a share of the largest term.
void check_close(const Results& results, const Results& oracle) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    CAPTURE(i);
    CHECK(results[i].scalar_type() == at::kFloat);
    const double largest = std::max(1.0, oracle[i].abs().max().item<double>());
    CHECK((results[i].to(at::kDouble) - oracle[i]).abs().max().item<double>() < largest * 0x1p-6);
  }
}

bool same_bits(const Results& a, const Results& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) {
      return false;
    }
  }
  return true;
}

// Says so where the processor has no such kernel.
bool runs_here() {
  if (!sp::has_bf16_tiles(64)) {
    WARN("this processor does not multiply bf16");
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("bf16 blocks of every size at the edges of tiles and pairs are near fp64") {
  at::manual_seed(1);
  for (const int64_t rows : {1, 2, 3, 15, 16, 17, 63, 64, 65, 129}) {
    for (const int64_t head_dim : {2, 20, 64, 192}) {
      if (!runs_here()) {
        return;
      }
      CAPTURE(rows, head_dim);
      const Operands square = random_operands(2, rows, rows, 2, 2, head_dim);
      check_close(attention_in(at::kBFloat16, square, sp::kEarlierKeys),
                  attention_in(at::kDouble, square, sp::kEarlierKeys));
      const Operands wide = random_operands(2, rows, 71, 2, 2, head_dim);
      check_close(attention_in(at::kBFloat16, wide, {}), attention_in(at::kDouble, wide, {}));
    }
  }
}

TEST_CASE("bf16 windows that begin, end and lie between tiles are near fp64") {
  at::manual_seed(2);
  if (!runs_here()) {
    return;
  }
  const Operands x = random_operands(1, 150, 261, 2, 1, 16);
  for (const auto& [low, high] : std::vector<std::pair<int64_t, int64_t>>{
           {-110, -100}, {0, 1}, {0, 66}, {-63, 1}, {-65, 65}, {-100, 149}, {-109, -45}}) {
    CAPTURE(low, high);
    check_close(attention_in(at::kBFloat16, x, {low, high}),
                attention_in(at::kDouble, x, {low, high}));
  }
}

TEST_CASE("a bf16 query that sees no key gets zero and passes no gradient") {
  at::manual_seed(3);
  if (!runs_here()) {
    return;
  }
  const Operands x = random_operands(1, 140, 70, 1, 1, 16);
  const Results results = attention_in(at::kBFloat16, x, {0, 10});  // from 79 on none
  CHECK((results[0].narrow(1, 79, 61) == 0).all().item<bool>());
  CHECK((results[1].narrow(1, 79, 61) == 0).all().item<bool>());
  CHECK(at::isneginf(results[4].narrow(1, 79, 61)).all().item<bool>());
}

TEST_CASE(
    "bf16 heads of larger tensors, shared by groups, have the bits of copies; so have threads") {
  at::manual_seed(4);
  if (!runs_here()) {
    return;
  }
  const Operands all = random_operands(3, 77, 77, 12, 6, 16);
  const Operands x{all.q.narrow(2, 3, 6), all.k.narrow(2, 1, 2), all.v.narrow(2, 4, 2),
                   all.dout.narrow(2, 2, 6)};
  const Operands copies{x.q.contiguous(), x.k.contiguous(), x.v.contiguous(), x.dout.contiguous()};
  const Results results = attention_in(at::kBFloat16, x, sp::kEarlierKeys);
  check_close(results, attention_in(at::kDouble, x, sp::kEarlierKeys));
  CHECK(same_bits(results, attention_in(at::kBFloat16, copies, sp::kEarlierKeys)));
  const int threads = at::get_num_threads();
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    CHECK(same_bits(results, attention_in(at::kBFloat16, x, sp::kEarlierKeys)));
  }
  at::set_num_threads(threads);
}

TEST_CASE("bf16 attention is no further from fp64 than 1.5 times ATen's in bf16") {
  at::manual_seed(5);
  if (!runs_here()) {
    return;
  }
  for (const int64_t rows : {100, 500}) {
    const Operands x = random_operands(2, rows, rows, 6, 2, 64);
    const Results results = attention_in(at::kBFloat16, x, sp::kEarlierKeys);
    const Results oracle = attention_in(at::kDouble, x, sp::kEarlierKeys), theirs = atens(x);
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      CAPTURE(rows, i);
      // Rounded, as what leaves the operator is.
      CHECK(distance(results[i].to(at::kBFloat16), oracle[i]) <=
            1.5 * distance(theirs[i], oracle[i]));
    }
  }
}

}  // namespace ringside::bf16_attention_test
