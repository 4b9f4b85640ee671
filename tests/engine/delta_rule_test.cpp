// Gated delta rule in chunks against the recurrence, one row at a time, in fp64 with autograd.
#include "engine/nn/delta_rule.h"

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/close.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

struct Case {
  int64_t key_heads = 2, heads = 4, key_dim = 5, value_dim = 3;
  std::vector<RecurrentRun> runs;

  int64_t rows() const {
    int64_t rows = 0;
    for (const RecurrentRun& run : runs) {
      rows += run.end - run.begin;
    }
    return rows;
  }
  int64_t initial() const {
    int64_t n = 0;
    for (const RecurrentRun& run : runs) {
      n += run.after < 0;
    }
    return n;
  }
};

Case documents(const std::vector<int64_t>& lengths) {
  Case c;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    c.runs.push_back({begin, begin + length, -1});
    begin += length;
  }
  return c;
}

// q, k, v, g, beta, initial states.
using Leaves = std::array<at::Tensor, 6>;

Leaves make_leaves(const Case& c, at::ScalarType dtype = at::kDouble) {
  at::manual_seed(7);
  const int64_t s = c.rows();
  const auto unit = [](const at::Tensor& x) { return x / x.norm(2, {2}, true); };
  const auto random = [](std::vector<int64_t> shape) { return at::randn(shape, at::kDouble); };
  Leaves leaves{unit(random({s, c.key_heads, c.key_dim})),
                unit(random({s, c.key_heads, c.key_dim})),
                random({s, c.heads, c.value_dim}),
                -0.05 * at::rand({s, c.heads}, at::kDouble),  // slow decay
                at::rand({s, c.heads}, at::kDouble),
                random({c.initial(), c.heads, c.key_dim, c.value_dim})};
  for (at::Tensor& leaf : leaves) {
    leaf = leaf.to(dtype).set_requires_grad(true);
  }
  return leaves;
}

DeltaRows rows_of(const Leaves& x) { return {x[0], x[1], x[2], x[3], x[4]}; }

std::shared_ptr<const ChunkTables> tables_of(const Case& c) {
  return std::make_shared<const ChunkTables>(c.runs, c.rows(), at::kCPU);
}

DeltaResult recurrence(const Case& c, const Leaves& x) {
  const int64_t repeats = c.heads / c.key_heads;
  const auto q = x[0].repeat_interleave(repeats, 1).unbind(), v = x[2].unbind(),
             k = x[1].repeat_interleave(repeats, 1).unbind(), g = x[3].unbind(),
             beta = x[4].unbind();
  std::vector<at::Tensor> out(c.rows()), ends;
  int64_t initial = 0;
  for (const RecurrentRun& run : c.runs) {
    at::Tensor state = run.after < 0 ? x[5][initial++] : ends[run.after];
    for (int64_t t = run.begin; t < run.end; ++t) {
      state = state * g[t].exp().view({-1, 1, 1});
      const at::Tensor read = (state * k[t].unsqueeze(2)).sum(1);
      state = state + k[t].unsqueeze(2) * (beta[t].unsqueeze(1) * (v[t] - read)).unsqueeze(1);
      out[t] = (state * q[t].unsqueeze(2)).sum(1);
    }
    ends.push_back(state);
  }
  return {out.empty() ? at::zeros_like(x[2]) : at::stack(out), at::stack(ends)};
}

// Outputs, end states and all gradients.
std::vector<at::Tensor> all_results(const DeltaResult& result, const Leaves& leaves) {
  at::manual_seed(8);
  const at::Tensor loss =
      (result.out_ShV * at::randn(result.out_ShV.sizes(), result.out_ShV.options())).sum() +
      (result.end_rhKV * at::randn(result.end_rhKV.sizes(), result.end_rhKV.options())).sum();
  std::vector<at::Tensor> all{result.out_ShV.detach(), result.end_rhKV.detach()};
  for (const at::Tensor& leaf : leaves) {
    leaf.mutable_grad().reset();
  }
  loss.backward();
  for (const at::Tensor& leaf : leaves) {
    all.push_back(leaf.grad().defined() ? leaf.grad().clone() : at::zeros_like(leaf));
  }
  return all;
}

void check_case(const Case& c) {
  const Leaves leaves = make_leaves(c);
  const auto expected = all_results(recurrence(c, leaves), leaves);
  const auto found = all_results(delta_rule(rows_of(leaves), tables_of(c), leaves[5]), leaves);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(max_abs_diff(found[i], expected[i]) < 1e-10);
    CHECK((expected[i].numel() == 0 || expected[i].abs().max().item<double>() > 0));
  }
}

TEST_CASE("chunks compute the recurrence and its gradients at every length") {
  for (const int64_t length : {1, 3, 63, 64, 65, 200}) {
    CAPTURE(length);
    check_case(documents({length}));
  }
}

TEST_CASE("packed documents of any lengths compute the recurrence") {
  check_case(documents({200, 1, 64, 3, 0, 130, 65, 2, 63}));
}

TEST_CASE("runs that continue others start from their end states") {
  Case c = documents({70, 3, 0, 130, 64, 1, 5});
  for (const auto& [run, after] : {std::pair{1, 0}, {2, 0}, {3, 2}, {4, 0}, {6, 5}}) {
    c.runs[run].after = after;
  }
  check_case(c);
}

TEST_CASE("more chunks than one block holds compute the recurrence") {
  Case c = documents({200, 70, 130});
  c.key_heads = c.heads = 64;
  c.key_dim = 2;
  c.value_dim = 2;
  check_case(c);
}

TEST_CASE("rows may be in another order than the runs") {
  Case c;
  c.runs = {{100, 170, -1}, {0, 100, -1}, {170, 180, 0}};
  check_case(c);
}

TEST_CASE("without initial states runs start from zero") {
  const Case c = documents({70, 3});
  const Leaves leaves = make_leaves(c);
  const auto zero = delta_rule(rows_of(leaves), tables_of(c), at::zeros_like(leaves[5]));
  const auto none = delta_rule(rows_of(leaves), tables_of(c));
  CHECK(none.out_ShV.equal(zero.out_ShV));
  CHECK(none.end_rhKV.equal(zero.end_rhKV));
  zero.out_ShV.sum().backward();
  const at::Tensor expected = leaves[2].grad().clone();
  leaves[2].mutable_grad().reset();
  none.out_ShV.sum().backward();
  CHECK(leaves[2].grad().equal(expected));
}

TEST_CASE("a document does not reach the next one however slowly states decay") {
  const Case c = documents({70, 90});
  Leaves leaves = make_leaves(c);
  const auto before = delta_rule(rows_of(leaves), tables_of(c));
  at::Tensor values = leaves[2].detach().clone();
  values.narrow(0, 0, 70).mul_(-3);
  leaves[2] = values;
  const auto after = delta_rule(rows_of(leaves), tables_of(c));
  CHECK(after.out_ShV.narrow(0, 70, 90).equal(before.out_ShV.narrow(0, 70, 90)));
  CHECK_FALSE(after.out_ShV.narrow(0, 0, 70).equal(before.out_ShV.narrow(0, 0, 70)));
}

TEST_CASE("the map of a run takes any start to the run's end, gradients included") {
  const Case c = documents({70, 3, 130});
  const Leaves leaves = make_leaves(c);
  DeltaRows rows = rows_of(leaves);
  const DeltaMaps maps = delta_maps(rows, tables_of(c));
  const at::Tensor end = maps.transition_rhKK.matmul(leaves[5]) + maps.added_rhKV;
  const at::Tensor no_out = at::zeros_like(leaves[2]);
  const auto found = all_results({no_out, end}, leaves);
  const auto expected = all_results({no_out, recurrence(c, leaves).end_rhKV}, leaves);
  for (const std::size_t i : {1, 3, 4, 5, 6, 7}) {
    CAPTURE(i);
    CHECK(max_abs_diff(found[i], expected[i]) < 1e-10);
  }
}

TEST_CASE("steps of one row compute the recurrence") {
  Case c = documents({5});
  const Leaves leaves = make_leaves(c);
  const DeltaResult expected = recurrence(c, leaves);
  at::Tensor state = leaves[5].detach().clone();
  for (int64_t t = 0; t < 5; ++t) {
    const auto row = [&](int64_t i) { return leaves[i].detach().narrow(0, t, 1); };
    const at::Tensor out = delta_step({row(0), row(1), row(2), row(3), row(4)}, state);
    CHECK(max_abs_diff(out[0], expected.out_ShV[t]) < 1e-12);
  }
  CHECK(max_abs_diff(state, expected.end_rhKV) < 1e-12);
}

TEST_CASE("states and sums of bf16 rows are in fp32") {
  const Case c = documents({200});
  Leaves leaves = make_leaves(c);
  for (const int i : {0, 1, 2}) {
    leaves[i] = leaves[i].detach().to(at::kBFloat16).to(at::kDouble).set_requires_grad(true);
  }
  const DeltaResult exact = recurrence(c, leaves);
  const auto narrow = [&](int i, at::ScalarType dtype) { return leaves[i].detach().to(dtype); };
  const DeltaResult found =
      delta_rule({narrow(0, at::kBFloat16), narrow(1, at::kBFloat16), narrow(2, at::kBFloat16),
                  narrow(3, at::kFloat), narrow(4, at::kFloat)},
                 tables_of(c), narrow(5, at::kFloat));
  CHECK(found.out_ShV.scalar_type() == at::kBFloat16);
  CHECK(max_abs_diff(found.end_rhKV, exact.end_rhKV) < 1e-5);
}

TEST_CASE("fp32 holds when all keys are equal and each row overwrites the one before") {
  const Case c = documents({200});
  Leaves leaves = make_leaves(c);
  leaves[1] = leaves[1].detach().narrow(0, 0, 1).expand_as(leaves[1]).clone();
  leaves[4] = at::ones_like(leaves[4]).detach();
  const DeltaResult exact = recurrence(c, leaves);
  Leaves narrow = leaves;
  for (at::Tensor& leaf : narrow) {
    leaf = leaf.detach().to(at::kFloat);
  }
  const DeltaResult found = delta_rule(rows_of(narrow), tables_of(c), narrow[5]);
  CHECK(max_abs_diff(found.out_ShV, exact.out_ShV) < 1e-5);
  CHECK(max_abs_diff(found.end_rhKV, exact.end_rhKV) < 1e-5);
}

TEST_CASE("runs that do not cover the rows once are refused by name") {
  CHECK_THROWS_WITH(ChunkTables({{0, 3, -1}, {2, 5, -1}}, 5, at::kCPU),
                    Catch::Contains("run 1: row 2 is in two runs"));
  CHECK_THROWS_WITH(ChunkTables({{0, 3, -1}}, 5, at::kCPU), Catch::Contains("row 3 is in no run"));
  CHECK_THROWS_WITH(ChunkTables({{0, 5, 0}}, 5, at::kCPU), Catch::Contains("run 0: continues"));
}

}  // namespace
}  // namespace ringside::engine
