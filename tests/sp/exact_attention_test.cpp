// Guards: attention by matrix products that departs from the block kernel or from the flash
// kernel's reading of masks; tiles that lose rows or hold more scores than allowed. Oracles:
// block_attention, and the CPU twin of the flash kernel.
#include "sp/attention/cuda/exact_attention.h"

#include "sp/attention/block_attention.h"
#include "tests/sp/cuda_twins.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

using namespace ringside;

namespace {

std::vector<sp::Range> packed(const std::vector<int64_t>& lengths) {
  std::vector<sp::Range> all;
  int64_t begin = 0;
  for (const int64_t n : lengths) {
    all.push_back({begin, begin + n});
    begin += n;
  }
  return all;
}

struct Call {
  std::vector<int64_t> queries, keys;
  sp::VarlenGroupMask mask;
};

constexpr double kScale = 0.3;

}  // namespace

TEST_CASE("exact attention reads every mask as the flash kernel does, in tiles of any size") {
  const std::vector<Call> calls{{{7, 1, 13, 9, 6}, {7, 33, 30, 9, 1}, {-1, -1}},
                                {{7, 1, 13, 9}, {7, 1, 13, 9}, {-1, 0}},
                                {{7, 1, 13}, {20, 5, 13}, {-1, 0}},
                                {{7, 1, 13, 9}, {9, 21, 15, 29}, {5, 0}},
                                {{30, 8}, {31, 70}, {12, -1}},
                                {{30, 8}, {31, 70}, {20, 40}},
                                {{1, 1, 1}, {40, 1, 7}, {-1, -1}}};
  const test::CpuVarlenGroupOps twin;
  at::manual_seed(4);
  for (const Call& c : calls) {
    const auto call = sp::make_varlen_call(packed(c.queries), packed(c.keys), c.mask, at::kCPU);
    for (const auto& [h, K] : {std::pair<int64_t, int64_t>{4, 2}, {3, 3}, {5, 1}}) {
      const at::Tensor q = at::randn({call.query_begins.back(), h, 6}, at::kDouble);
      const at::Tensor kv = at::randn({call.key_begins.back(), 2 * K, 6}, at::kDouble);
      const at::Tensor k = kv.narrow(1, 0, K), v = kv.narrow(1, K, K), dout = at::randn_like(q);
      const auto [out, lse] = twin.attend(q, k, v, call, kScale);
      const auto [dq, dk, dv] = twin.attend_backward(dout, q, k, v, out, lse, call, kScale);
      for (const int64_t scores : {int64_t{1}, int64_t{150}, sp::kMaxExactScores}) {
        INFO("left " << c.mask.left << ", right " << c.mask.right << ", heads " << h << " / " << K
                     << ", scores " << scores);
        const auto [o, l] = sp::exact_attention(q, k, v, call, kScale, scores);
        const auto [a, b, d] =
            sp::exact_attention_backward(dout, q, k, v, o, l, call, kScale, scores);
        CHECK(test::max_abs_diff(o, out) < 1e-12);
        CHECK(test::max_abs_diff(l, lse) < 1e-12);
        CHECK(test::max_abs_diff(a, dq) < 1e-12);
        CHECK(test::max_abs_diff(b, dk) < 1e-12);
        CHECK(test::max_abs_diff(d, dv) < 1e-12);
      }
    }
  }
}

TEST_CASE("exact attention equals the block kernel in fp64 and fp32") {
  at::manual_seed(5);
  for (const auto& [dtype, bound] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-5}}) {
    for (const bool causal : {true, false}) {
      const int64_t n = 37, m = causal ? 37 : 50;
      const at::Tensor q = at::randn({n, 4, 16}, dtype), dout = at::randn({n, 4, 16}, dtype);
      const at::Tensor k = at::randn({m, 2, 16}, dtype), v = at::randn({m, 2, 16}, dtype);
      const auto call =
          sp::make_varlen_call(packed({n}), packed({m}), {-1, causal ? 0 : -1}, at::kCPU);
      const auto [out, lse] = sp::exact_attention(q, k, v, call, kScale, 500);
      const auto batch = [](const at::Tensor& x) { return x.unsqueeze(0); };
      const auto mask = sp::block_mask(causal ? sp::kEarlierKeys : sp::VisibleKeys{}, n, m, dtype);
      const auto expected = sp::block_attention(batch(q), batch(k), batch(v), mask, kScale);
      CHECK(test::max_abs_diff(out, expected.out[0]) < bound);
      CHECK(test::max_abs_diff(lse.t(), expected.lse[0]) < bound);
      const auto grads = sp::block_attention_backward(batch(dout), batch(q), batch(k), batch(v),
                                                      expected.out, expected.lse, mask, kScale);
      const auto [dq, dk, dv] =
          sp::exact_attention_backward(dout, q, k, v, out, lse, call, kScale, 500);
      CHECK(test::max_abs_diff(dq, grads.dq_BnHD[0]) < bound);
      CHECK(test::max_abs_diff(dk, grads.dk_BmKD[0]) < bound);
      CHECK(test::max_abs_diff(dv, grads.dv_BmKD[0]) < bound);
    }
  }
}

TEST_CASE("rows without keys get zero and pass no gradient") {
  // More queries than keys under the bottom right causal mask: the first three see nothing.
  const auto call = sp::make_varlen_call(packed({5}), packed({2}), {-1, 0}, at::kCPU);
  const at::Tensor q = at::randn({5, 2, 4}, at::kDouble), kv = at::randn({2, 2, 4}, at::kDouble);
  // A bound of max_k or more would be none, so a longer entry is beside it.
  const auto both = sp::make_varlen_call(packed({5, 9}), packed({2, 9}), {-1, 0}, at::kCPU);
  const at::Tensor q2 = at::cat({q, at::randn({9, 2, 4}, at::kDouble)});
  const at::Tensor kv2 = at::cat({kv, at::randn({9, 2, 4}, at::kDouble)});
  const auto [out, lse] = sp::exact_attention(q2, kv2, kv2, both, kScale);
  CHECK((out.narrow(0, 0, 3) == 0).all().item<bool>());
  CHECK(at::isneginf(lse.narrow(1, 0, 3)).all().item<bool>());
  const auto [dq, dk, dv] =
      sp::exact_attention_backward(at::ones_like(q2), q2, kv2, kv2, out, lse, both, kScale);
  CHECK((dq.narrow(0, 0, 3) == 0).all().item<bool>());
  CHECK(at::isfinite(dk).all().item<bool>());
  CHECK_THROWS_WITH(sp::exact_attention(q, kv2, kv2, call, kScale),
                    Catch::Contains("boundaries for 5 and 11 rows"));
}
