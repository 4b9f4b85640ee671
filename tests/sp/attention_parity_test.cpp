// Guards: any split of documents, heads and ranks that changes an output or a gradient; bytes sent that the plan does
// not predict; partial results in less than fp32. Oracle: dense fp64 softmax in one process.
#include <random>

#include "sp/attention/attention.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/dense_attention.h"
#include "tests/support/ranks.h"

using namespace ringside;
using ringside::test::max_abs_diff;

namespace {

struct Problem {
  std::vector<int64_t> lengths;
  sp::HeadShape heads;
  at::Tensor q, k, v, dout;  // packed, fp64
};

Problem make_problem(std::vector<int64_t> lengths, sp::HeadShape heads) {
  at::manual_seed(5);
  int64_t tokens = 0;
  for (const int64_t n : lengths) {
    tokens += n;
  }
  const auto random = [&](int64_t h) { return at::randn({tokens, h, heads.head_dim}, at::kDouble); };
  Problem p{std::move(lengths), heads, {}, {}, {}, {}};
  p.q = random(heads.num_query_heads);
  p.k = random(heads.num_kv_heads);
  p.v = random(heads.num_kv_heads);
  p.dout = random(heads.num_query_heads);
  return p;
}

struct Result {
  at::Tensor out, dq, dk, dv;  // packed
};

Result dense(const Problem& p, double scale) {
  const at::Tensor q = p.q.clone().requires_grad_(), k = p.k.clone().requires_grad_(),
                   v = p.v.clone().requires_grad_();
  const at::Tensor out = test::dense_attention(q, k, v, p.lengths, scale);
  out.backward(p.dout);
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

struct ShardResult {
  std::vector<int64_t> packed;
  Result local;
};

ShardResult run_rank(const Problem& p, const sp::Mesh& mesh, const sp::MeshCommunicators& comms,
                     at::ScalarType dtype, double scale) {
  const sp::SequenceLayout layout(p.lengths, mesh.shape().ring, mesh.shape().ulysses);
  const auto plan = std::make_shared<const sp::AttentionPlan>(
      sp::plan_attention(layout, p.heads, mesh.sp_rank()));
  const auto packed = layout.packed_indices(mesh.sp_rank());
  const at::Tensor index = at::tensor(packed, at::kLong);
  const auto local = [&](const at::Tensor& x) { return x.index_select(0, index).to(dtype); };
  const at::Tensor q = local(p.q).requires_grad_(), k = local(p.k).requires_grad_(),
                   v = local(p.v).requires_grad_();
  const at::Tensor out = sp::attention(q, k, v, {plan, comms.ulysses, comms.ring}, scale);

  const int64_t element = at::elementSize(dtype);
  const int64_t accumulated = dtype == at::kDouble ? 8 : 4;
  const auto sent = [](const sp::Communicator& c, const char* tag) {
    const auto found = c.sent_bytes().find(tag);
    return found == c.sent_bytes().end() ? int64_t{0} : found->second;
  };
  TORCH_CHECK(sent(*comms.ulysses, "ulysses_query") == plan->traffic.ulysses_query * element);
  TORCH_CHECK(sent(*comms.ulysses, "ulysses_kv") == plan->traffic.ulysses_kv * element);
  TORCH_CHECK(sent(*comms.ulysses, "ulysses_output") == plan->traffic.ulysses_output * element);
  TORCH_CHECK(sent(*comms.ring, "ring_kv") == plan->traffic.ring_kv * element);
  out.backward(local(p.dout));
  const int64_t kv_grad_element = plan->kv_heads_shared ? accumulated : element;
  TORCH_CHECK(sent(*comms.ulysses, "ulysses_query") == 2 * plan->traffic.ulysses_query * element);
  TORCH_CHECK(sent(*comms.ulysses, "ulysses_output") == 2 * plan->traffic.ulysses_output * element);
  TORCH_CHECK(sent(*comms.ulysses, "ulysses_kv_grad") == plan->traffic.ulysses_kv_grad * kv_grad_element);
  TORCH_CHECK(sent(*comms.ring, "ring_kv") == 2 * plan->traffic.ring_kv * element);
  TORCH_CHECK(sent(*comms.ring, "ring_kv_grad") == plan->traffic.ring_kv_grad * accumulated);
  return {packed, {out.detach(), q.grad(), k.grad(), v.grad()}};
}

Result run(const Problem& p, sp::MeshShape shape, at::ScalarType dtype, double scale) {
  std::vector<ShardResult> shards(shape.world_size());
  test::run_ranks(shape, [&](const sp::Mesh& mesh, const sp::MeshCommunicators& comms) {
    shards[mesh.rank()] = run_rank(p, mesh, comms, dtype, scale);
  });
  Result whole{at::empty_like(p.q), at::empty_like(p.q), at::empty_like(p.k), at::empty_like(p.k)};
  for (const ShardResult& shard : shards) {
    const at::Tensor index = at::tensor(shard.packed, at::kLong);
    const auto put = [&](at::Tensor& to, const at::Tensor& from) {
      to.index_copy_(0, index, from.to(at::kDouble));
    };
    put(whole.out, shard.local.out);
    put(whole.dq, shard.local.dq);
    put(whole.dk, shard.local.dk);
    put(whole.dv, shard.local.dv);
  }
  return whole;
}

double worst(const Result& a, const Result& b) {
  return std::max({max_abs_diff(a.out, b.out), max_abs_diff(a.dq, b.dq), max_abs_diff(a.dk, b.dk),
                   max_abs_diff(a.dv, b.dv)});
}

const std::vector<sp::MeshShape> kShapes{{1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {1, 1, 3}, {1, 3, 1}, {1, 2, 2},
                                         {1, 1, 4}, {1, 4, 1}, {1, 8, 1}, {1, 4, 2}, {1, 2, 4}, {1, 1, 8}};

}  // namespace

TEST_CASE("outputs and gradients equal the dense oracle for every mesh, head count and pack", "[parity]") {
  std::mt19937 rng(1);
  std::vector<int64_t> ragged(7);
  for (int64_t& n : ragged) {
    n = std::uniform_int_distribution<int64_t>(1, 3 * 16 + 1)(rng);
  }
  const std::vector<std::vector<int64_t>> packs{{37}, ragged, {90, 3, 1, 1, 5, 2, 2, 7}, {1}, {12, 12, 12, 12}};
  for (const auto& heads : std::vector<sp::HeadShape>{{8, 8, 4}, {8, 2, 4}, {6, 2, 4}, {5, 1, 4}, {28, 4, 4}}) {
    for (const auto& lengths : packs) {
      const Problem p = make_problem(lengths, heads);
      const Result expected = dense(p, 0.37);
      for (const auto& shape : kShapes) {
        CAPTURE(heads.num_query_heads, heads.num_kv_heads, lengths, shape.ring, shape.ulysses);
        if (shape.ulysses > heads.num_query_heads) {
          CHECK_THROWS_WITH(run(p, shape, at::kDouble, 0.37), Catch::Contains("exceeds the"));
        } else {
          CHECK(worst(run(p, shape, at::kDouble, 0.37), expected) < 1e-10);
        }
      }
    }
  }
}

TEST_CASE("bf16 error stays within twice the single process and does not grow with the degree") {
  const Problem p = make_problem({301, 44}, {8, 2, 16});
  Problem rounded = p;  // the oracle sees the same bf16 inputs
  for (at::Tensor* x : {&rounded.q, &rounded.k, &rounded.v, &rounded.dout}) {
    *x = x->to(at::kBFloat16).to(at::kDouble);
  }
  const Result expected = dense(rounded, 0.25);
  const double single = worst(run(rounded, {1, 1, 1}, at::kBFloat16, 0.25), expected);
  for (const auto& shape : std::vector<sp::MeshShape>{{1, 2, 1}, {1, 4, 1}, {1, 8, 1}, {1, 1, 2}, {1, 1, 8}, {1, 4, 2}}) {
    const double error = worst(run(rounded, shape, at::kBFloat16, 0.25), expected);
    CAPTURE(shape.ring, shape.ulysses, error, single);
    CHECK(error <= 2 * single);
  }
}

TEST_CASE("shapes that do not fit the plan are refused before any collective") {
  const sp::SequenceLayout layout({4}, 1, 1);
  const auto plan = std::make_shared<const sp::AttentionPlan>(sp::plan_attention(layout, {4, 2, 8}, 0));
  const auto alone = sp::make_single_rank_communicator();
  const at::Tensor q = at::zeros({4, 4, 8}), kv = at::zeros({4, 2, 8});
  CHECK_THROWS_WITH(sp::attention(kv, kv, kv, {plan, alone, alone}, 1.0), Catch::Contains("q has shape"));
  CHECK_THROWS_WITH(sp::attention(q, q, q, {plan, alone, alone}, 1.0), Catch::Contains("k and v have shapes"));
  CHECK_THROWS_WITH(sp::attention(q, kv.to(at::kDouble), kv.to(at::kDouble), {plan, alone, alone}, 1.0),
                    Catch::Contains("share a dtype"));
}
