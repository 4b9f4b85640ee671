// Guards: NaN from merging two empty partials, bf16 accumulators, a merge into the wrong rows or
// heads, and a kernel call whose query heads are not a multiple of its KV heads (the CPU kernel
// would read out of bounds without a word).
#include "sp/attention/lse_merge.h"

#include <limits>

#include "sp/attention/block_attention.h"
#include "sp/attention/row_selection.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

using namespace ringside;
using ringside::test::max_abs_diff;

namespace {

const double kInf = std::numeric_limits<double>::infinity();

sp::PartialAttention filled(std::vector<int64_t> shape, double out, double lse) {
  const at::Tensor values = at::full(shape, out);
  shape.pop_back();
  return {values, at::full(shape, lse)};
}

}  // namespace

TEST_CASE("merging halves of the keys equals attending to all of them") {
  at::manual_seed(2);
  const at::Tensor q = at::randn({1, 5, 2, 4}, at::kDouble),
                   k = at::randn({1, 6, 2, 4}, at::kDouble),
                   v = at::randn({1, 6, 2, 4}, at::kDouble);
  const auto whole = sp::block_attention(q, k, v, {}, 0.5);
  sp::PartialAttention merged{at::empty({5, 2, 4}, at::kDouble), at::empty({5, 2}, at::kDouble)};
  const std::vector<int64_t> begins{0};
  sp::write_rows(merged, sp::block_attention(q, k.narrow(1, 0, 2), v.narrow(1, 0, 2), {}, 0.5),
                 {begins});
  sp::merge_rows(merged, sp::block_attention(q, k.narrow(1, 2, 4), v.narrow(1, 2, 4), {}, 0.5),
                 {begins});
  CHECK(max_abs_diff(merged.out, whole.out.squeeze(0)) < 1e-14);
  CHECK(max_abs_diff(merged.lse, whole.lse.squeeze(0)) < 1e-14);
}

TEST_CASE("parts land on their rows and heads only") {
  sp::PartialAttention whole = filled({7, 3, 2}, 1.0, 0.0);
  const std::vector<int64_t> begins{4, 0};
  sp::write_rows(whole, filled({2, 2, 1, 2}, 5.0, 2.0), {begins, /*head_begin=*/1});
  at::Tensor expected = at::ones({7, 3});
  for (const int64_t row : {0, 1, 4, 5}) {
    expected[row][1] = 5.0;
  }
  CHECK(at::equal(whole.out.select(2, 1), expected));
  CHECK(whole.lse.sum().item<float>() == 8.0f);
  sp::merge_rows(whole, filled({2, 2, 1, 2}, 9.0, 2.0), {begins, 1});  // equal weights: the mean
  CHECK(whole.out[4][1][0].item<float>() == 7.0f);
  CHECK(whole.out[3][1][0].item<float>() == 1.0f);
  CHECK_THROWS_WITH(sp::merge_rows(whole, filled({1, 2, 1, 2}, 0, 0), {std::vector<int64_t>{6}, 0}),
                    Catch::Contains("rows 6 to 8 into 7"));
}

TEST_CASE("empty partials merge to zero with -inf, and do not disturb others") {
  const std::vector<int64_t> begins{0};
  sp::PartialAttention both = filled({2, 1, 3}, 0.0, -kInf);
  sp::merge_rows(both, filled({1, 2, 1, 3}, 0.0, -kInf), {begins});
  CHECK(both.out.abs().max().item<float>() == 0.0f);
  CHECK((both.lse == -kInf).all().item<bool>());
  sp::PartialAttention empty_first = filled({2, 1, 3}, 0.0, -kInf);
  sp::merge_rows(empty_first, filled({1, 2, 1, 3}, 2.0, 90.0), {begins});
  CHECK((empty_first.out == 2.0).all().item<bool>());
  sp::PartialAttention empty_second = filled({2, 1, 3}, 2.0, 90.0);
  sp::merge_rows(empty_second, filled({1, 2, 1, 3}, 0.0, -kInf), {begins});
  CHECK((empty_second.lse == 90.0).all().item<bool>());
  CHECK((empty_second.out == 2.0).all().item<bool>());
}

TEST_CASE("bf16 accumulators are refused") {
  sp::PartialAttention whole{at::zeros({2, 1, 3}, at::kBFloat16), at::zeros({2, 1}, at::kBFloat16)};
  const sp::PartialAttention part{at::zeros({1, 2, 1, 3}, at::kBFloat16),
                                  at::zeros({1, 2, 1}, at::kBFloat16)};
  CHECK_THROWS_WITH(sp::merge_rows(whole, part, {std::vector<int64_t>{0}}),
                    Catch::Contains("fp32 or fp64"));
}

TEST_CASE("query heads must be a multiple of KV heads at the kernel", "[hazard]") {
  const at::Tensor q = at::zeros({1, 4, 5, 8}), kv = at::zeros({1, 4, 2, 8});
  CHECK_THROWS_WITH(sp::block_attention(q, kv, kv, {}, 1.0), Catch::Contains("5 query heads"));
}

TEST_CASE("rows are gathered and summed alike as views and by index") {
  const at::Tensor share = at::arange(24, at::kDouble).view({12, 2});
  for (const auto& begins :
       std::vector<std::vector<int64_t>>{{4}, {0, 4, 8}, {1, 3, 9}, {9, 1, 5}}) {
    const sp::RowSelection rows(begins, 2);
    const at::Tensor gathered = rows.gather(share);
    at::Tensor expected = at::zeros_like(share);
    for (std::size_t b = 0; b < begins.size(); ++b) {
      CHECK(at::equal(gathered[b], share.narrow(0, begins[b], 2)));
      expected.narrow(0, begins[b], 2).copy_(gathered[b]);
    }
    at::Tensor target = at::zeros_like(share);
    rows.add(target, gathered);
    CHECK(at::equal(target, expected));
  }
  at::Tensor summed = at::zeros({4, 1});
  sp::RowSelection({0, 0, 2}, 2).add(summed, at::ones({3, 2, 1}));
  CHECK(at::equal(summed.view(-1), at::tensor({2.0f, 2.0f, 1.0f, 1.0f})));
}
