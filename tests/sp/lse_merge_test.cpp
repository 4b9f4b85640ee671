// Guards: NaN from merging two empty partials, bf16 accumulators, and a kernel call whose query heads are not a multiple
// of its KV heads (the CPU kernel would read out of bounds without a word).
#include <limits>

#include "sp/attention/block_attention.h"
#include "sp/attention/lse_merge.h"
#include "sp/attention/row_selection.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

using namespace ringside;
using ringside::test::max_abs_diff;

TEST_CASE("merging halves of the keys equals attending to all of them") {
  at::manual_seed(2);
  const at::Tensor q = at::randn({1, 5, 2, 4}, at::kDouble), k = at::randn({1, 6, 2, 4}, at::kDouble),
                   v = at::randn({1, 6, 2, 4}, at::kDouble);
  const auto whole = sp::block_attention(q, k, v, false, 0.5);
  const auto merged = sp::merge_partials(
      sp::block_attention(q, k.narrow(1, 0, 2), v.narrow(1, 0, 2), false, 0.5),
      sp::block_attention(q, k.narrow(1, 2, 4), v.narrow(1, 2, 4), false, 0.5));
  CHECK(max_abs_diff(merged.out, whole.out) < 1e-14);
  CHECK(max_abs_diff(merged.lse, whole.lse) < 1e-14);
}

TEST_CASE("empty partials merge to zero with -inf, and do not disturb others") {
  const double inf = std::numeric_limits<double>::infinity();
  const sp::PartialAttention empty{at::zeros({2, 3}), at::full({2}, -inf)};
  const auto both = sp::merge_partials(empty, empty);
  CHECK(both.out.abs().max().item<float>() == 0.0f);
  CHECK((both.lse == -inf).all().item<bool>());
  const sp::PartialAttention some{at::ones({2, 3}) * 2, at::full({2}, 90.0)};
  CHECK(max_abs_diff(sp::merge_partials(empty, some).out, some.out) == 0.0);
  CHECK(max_abs_diff(sp::merge_partials(some, empty).lse, some.lse) == 0.0);
}

TEST_CASE("bf16 accumulators are refused") {
  const sp::PartialAttention p{at::zeros({2, 3}, at::kBFloat16), at::zeros({2}, at::kBFloat16)};
  CHECK_THROWS_WITH(sp::merge_partials(p, p), Catch::Contains("fp32 or fp64"));
}

TEST_CASE("query heads must be a multiple of KV heads at the kernel") {
  const at::Tensor q = at::zeros({1, 4, 5, 8}), kv = at::zeros({1, 4, 2, 8});
  CHECK_THROWS_WITH(sp::block_attention(q, kv, kv, true, 1.0), Catch::Contains("5 query heads"));
}

TEST_CASE("rows are gathered, written and summed alike as views and by index") {
  const at::Tensor share = at::arange(24, at::kDouble).view({12, 2});
  for (const auto& begins : std::vector<std::vector<int64_t>>{{4}, {0, 4, 8}, {1, 3, 9}, {9, 1, 5}}) {
    const sp::RowSelection rows(begins, 2);
    const at::Tensor gathered = rows.gather(share);
    for (std::size_t b = 0; b < begins.size(); ++b) {
      CHECK(at::equal(gathered[b], share.narrow(0, begins[b], 2)));
    }
    at::Tensor target = at::zeros_like(share);
    rows.write(target, gathered);
    rows.add(target, gathered);
    CHECK(target.sum().item<double>() == 2 * gathered.sum().item<double>());
  }
  at::Tensor summed = at::zeros({4, 1});
  sp::RowSelection({0, 0, 2}, 2).add(summed, at::ones({3, 2, 1}));
  CHECK(at::equal(summed.view(-1), at::tensor({2.0f, 2.0f, 1.0f, 1.0f})));
}
