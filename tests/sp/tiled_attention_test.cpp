// The CPU's fp32 kernel over tiles. Oracle: ATen's flash attention in fp64, through
// block_attention. Guards: rows and keys at the edges of tiles, windows that leave tiles out,
// queries that see no key, heads that share keys, strided operands, scores far from zero.
#include "sp/attention/tiled_attention.h"

#include <ATen/Parallel.h>

#include <array>
#include <cmath>
#include <limits>

#include "sp/attention/block_attention.h"
#include "sp/attention/key_parts.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

using namespace ringside;
using ringside::test::max_abs_diff;

namespace {

struct Operands {
  at::Tensor q, k, v, dout;
};

struct Result {
  sp::PartialAttention forward;
  sp::BlockGradients backward;
};

// Scores of about 1, as in a model. A score of s carries an error of s * 2^-24 into its
// probability.
double scale_of(const Operands& x) { return 1.0 / std::sqrt(static_cast<double>(x.q.size(3))); }

Operands random_operands(int64_t blocks, int64_t queries, int64_t keys, int64_t heads,
                         int64_t kv_heads, int64_t head_dim) {
  return {
      at::randn({blocks, queries, heads, head_dim}), at::randn({blocks, keys, kv_heads, head_dim}),
      at::randn({blocks, keys, kv_heads, head_dim}), at::randn({blocks, queries, heads, head_dim})};
}

Result tiled(const Operands& x, const sp::VisibleKeys& visible) {
  const auto forward = sp::tiled_attention(x.q, x.k, x.v, visible, scale_of(x));
  return {forward, sp::tiled_attention_backward(x.dout, x.q, x.k, x.v, forward.out, forward.lse,
                                                visible, scale_of(x))};
}

Result in_fp64(const Operands& x, const sp::VisibleKeys& visible) {
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const auto mask = sp::block_mask(visible, x.q.size(1), x.k.size(1), at::kDouble);
  const auto forward = sp::block_attention(wide(x.q), wide(x.k), wide(x.v), mask, scale_of(x));
  return {forward, sp::block_attention_backward(wide(x.dout), wide(x.q), wide(x.k), wide(x.v),
                                                forward.out, forward.lse, mask, scale_of(x))};
}

// The largest difference, relative to the largest element of the oracle or to 1.
double difference(const at::Tensor& x, const at::Tensor& oracle) {
  return max_abs_diff(x.to(at::kDouble), oracle) / std::max(1.0, oracle.abs().max().item<double>());
}

void check_close(const Result& result, const Result& oracle, double bound) {
  CHECK(difference(result.forward.out, oracle.forward.out) < bound);
  CHECK(difference(result.forward.lse, oracle.forward.lse) < bound);
  CHECK(difference(result.backward.dq_BnHD, oracle.backward.dq_BnHD) < bound);
  CHECK(difference(result.backward.dk_BmKD, oracle.backward.dk_BmKD) < bound);
  CHECK(difference(result.backward.dv_BmKD, oracle.backward.dv_BmKD) < bound);
}

bool same_bits(const Result& a, const Result& b) {
  return at::equal(a.forward.out, b.forward.out) && at::equal(a.forward.lse, b.forward.lse) &&
         at::equal(a.backward.dq_BnHD, b.backward.dq_BnHD) &&
         at::equal(a.backward.dk_BmKD, b.backward.dk_BmKD) &&
         at::equal(a.backward.dv_BmKD, b.backward.dv_BmKD);
}

}  // namespace

TEST_CASE("blocks of every size at the edges of tiles equal fp64") {
  at::manual_seed(1);
  for (const int64_t rows : {1, 2, 15, 16, 17, 48, 63, 64, 65, 127, 129, 200}) {
    for (const int64_t head_dim : {8, 20, 64, 128}) {
      CAPTURE(rows, head_dim);
      const Operands square = random_operands(2, rows, rows, 2, 2, head_dim);
      check_close(tiled(square, sp::kEarlierKeys), in_fp64(square, sp::kEarlierKeys), 2e-6);
      const Operands wide = random_operands(2, rows, 70, 2, 2, head_dim);
      check_close(tiled(wide, {}), in_fp64(wide, {}), 2e-6);
    }
  }
}

TEST_CASE("windows that begin, end and lie between tiles equal fp64") {
  at::manual_seed(2);
  const Operands x = random_operands(1, 150, 260, 2, 1, 16);
  // {low, high}: query i sees key j where low <= i - j < high. Every query sees a key.
  for (const auto& [low, high] :
       std::vector<std::pair<int64_t, int64_t>>{{-110, -100},
                                                {-110, 0},
                                                {0, 1},
                                                {0, 66},
                                                {-64, 0},
                                                {-63, 1},
                                                {-65, 65},
                                                {-1, 3},
                                                {-100, 149},
                                                {-109, -45},
                                                {0, sp::VisibleKeys::kUnlimited},
                                                {-sp::VisibleKeys::kUnlimited, 1}}) {
    CAPTURE(low, high);
    check_close(tiled(x, {low, high}), in_fp64(x, {low, high}), 2e-6);
  }
}

TEST_CASE("queries that see no key get zero and pass no gradient") {
  at::manual_seed(3);
  const Operands x = random_operands(1, 140, 70, 1, 1, 16);
  const sp::VisibleKeys window{0, 10};  // queries from 79 on see nothing
  const Result result = tiled(x, window);
  CHECK((result.forward.out.narrow(1, 79, 61) == 0).all().item<bool>());
  CHECK(at::isneginf(result.forward.lse.narrow(1, 79, 61)).all().item<bool>());
  CHECK((result.backward.dq_BnHD.narrow(1, 79, 61) == 0).all().item<bool>());
  const auto seeing = [](const at::Tensor& t) { return t.narrow(1, 0, 79); };
  const Operands those{seeing(x.q), x.k, x.v, seeing(x.dout)};
  const Result oracle = in_fp64(those, window);
  CHECK(difference(seeing(result.forward.out), oracle.forward.out) < 2e-6);
  CHECK(difference(seeing(result.backward.dq_BnHD), oracle.backward.dq_BnHD) < 2e-6);
  CHECK(difference(result.backward.dk_BmKD, oracle.backward.dk_BmKD) < 2e-6);
  CHECK(difference(result.backward.dv_BmKD, oracle.backward.dv_BmKD) < 2e-6);
}

TEST_CASE("heads of larger tensors, shared by groups of query heads, equal fp64") {
  at::manual_seed(4);
  const at::Tensor all_queries = at::randn({3, 77, 12, 16}), all_keys = at::randn({3, 77, 6, 16});
  const Operands x{all_queries.narrow(2, 3, 6), all_keys.narrow(2, 1, 2), all_keys.narrow(2, 4, 2),
                   at::randn({3, 77, 9, 16}).narrow(2, 2, 6)};
  const Operands copies{x.q.contiguous(), x.k.contiguous(), x.v.contiguous(), x.dout.contiguous()};
  const Result result = tiled(x, sp::kEarlierKeys);
  check_close(result, in_fp64(x, sp::kEarlierKeys), 2e-6);
  CHECK(same_bits(result, tiled(copies, sp::kEarlierKeys)));
}

TEST_CASE("the number of threads changes no bit") {
  at::manual_seed(5);
  const Operands x = random_operands(3, 200, 200, 6, 3, 32);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Result alone = tiled(x, sp::kEarlierKeys);
  for (const int count : {2, 3, 5}) {
    at::set_num_threads(count);
    CHECK(same_bits(tiled(x, sp::kEarlierKeys), alone));
  }
  at::set_num_threads(threads);
}

TEST_CASE("threads that share a key/value head change no bit") {
  at::manual_seed(8);
  const int threads = at::get_num_threads();
  // Of one block: more threads than key/value heads, or heads that do not divide among them.
  for (const auto& [kv_heads, queries, keys] :
       std::vector<std::array<int64_t, 3>>{{1, 1300, 1300}, {3, 1290, 1290}, {1, 300, 1400}}) {
    const Operands x = random_operands(1, queries, keys, 2 * kv_heads, kv_heads, 16);
    for (const sp::VisibleKeys& visible :
         {queries == keys ? sp::kEarlierKeys : sp::VisibleKeys{}, sp::VisibleKeys{-400, 70}}) {
      at::set_num_threads(1);
      const Result alone = tiled(x, visible);
      for (const int count : {2, 4, 5}) {
        CAPTURE(kv_heads, queries, count);
        REQUIRE(sp::key_part_count(kv_heads, count, keys) == count);
        at::set_num_threads(count);
        for (int again = 0; again < 3; ++again) {
          CHECK(same_bits(tiled(x, visible), alone));
        }
      }
      if (visible == sp::kEarlierKeys && kv_heads == 1) {
        check_close(alone, in_fp64(x, visible), 2e-6);
      }
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("key tiles are cut into ranges of about equal work that leave none out") {
  for (const int64_t parts : {2, 3, 7}) {
    const int64_t keys = 64 * 100 - 5;
    const auto ranges = sp::key_parts(sp::kEarlierKeys, keys, keys, parts);
    REQUIRE(static_cast<int64_t>(ranges.size()) == parts);
    int64_t next = 0;
    for (const sp::TileRange& range : ranges) {
      CHECK(range.begin == next);
      next = range.end;
      int64_t work = 0;  // query tiles that see the key tile
      for (int64_t tile = range.begin; tile < range.end; ++tile) {
        work += 100 - tile;
      }
      CHECK(std::abs(work * parts - 5050) <= 100 * parts);
    }
    CHECK(next == 100);
  }
  // Where no query sees a key, ranges are empty or not, but still cover all.
  CHECK(sp::key_parts({5000, 6000}, 128, 640, 3).back().end == 10);
  CHECK(sp::key_part_count(2, 2, 8192) == 1);   // a head each
  CHECK(sp::key_part_count(3, 2, 8192) == 2);   // one thread would have two of them
  CHECK(sp::key_part_count(39, 2, 8192) == 1);  // one of 39 does not matter
  CHECK(sp::key_part_count(1, 2, 256) == 1);    // too short
  CHECK(sp::key_part_count(1, 1, 8192) == 1);
}

TEST_CASE("scores of any size are shifted before they are raised") {
  at::manual_seed(6);
  for (const double size : {1e-20, 30.0, 300.0}) {  // scores of up to 1e6
    Operands x = random_operands(1, 100, 100, 2, 2, 16);
    x.q.mul_(size);
    x.k.mul_(size > 1.0 ? size : 1.0);
    CAPTURE(size);
    const Result result = tiled(x, sp::kEarlierKeys);
    const Result oracle = in_fp64(x, sp::kEarlierKeys);
    const double score = (x.q.abs().max() * x.k.abs().max()).item<double>() * 16 * scale_of(x);
    const double bound = 2e-6 + 4 * score * std::numeric_limits<float>::epsilon();
    CHECK(difference(result.forward.lse, oracle.forward.lse) < 2e-6);
    CHECK(difference(result.forward.out, oracle.forward.out) < bound);
    CHECK(at::isfinite(result.backward.dq_BnHD).all().item<bool>());
    CHECK(at::isfinite(result.backward.dk_BmKD).all().item<bool>());
    CHECK(difference(result.backward.dv_BmKD, oracle.backward.dv_BmKD) < bound);
  }
}

TEST_CASE("a query that is not a number reaches its own results, and no other query's") {
  at::manual_seed(7);
  Operands x = random_operands(1, 80, 80, 1, 1, 16);
  x.q[0][70][0][3] = std::numeric_limits<float>::quiet_NaN();
  const Result result = tiled(x, sp::kEarlierKeys);
  CHECK(at::isnan(result.forward.out[0][70]).all().item<bool>());
  CHECK(at::isfinite(result.forward.out.narrow(1, 0, 70)).all().item<bool>());
  CHECK(at::isfinite(result.forward.out.narrow(1, 71, 9)).all().item<bool>());
  CHECK(at::isnan(result.backward.dk_BmKD.narrow(1, 0, 71)).all().item<bool>());
  CHECK(at::isfinite(result.backward.dq_BnHD.narrow(1, 0, 70)).all().item<bool>());
}
