// Guards: CUDA row kernels and flash calls that depart from their CPU twins, ring_steps and several
// ranks on CUDA that are less exact than the rounding of the kernel explains. NCCL's collectives
// are in tests/rl/training_cuda_test.cpp. Linked wherever there is nvcc, run where there is a GPU
// (ctest label gpu); elsewhere it says that it ran nothing.
#include <ATen/cuda/CUDAContext.h>

#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "sp/attention/cuda/kernels.h"
#include "sp/mesh/c10d_communicator.h"
#include "sp/mesh/nccl_groups.h"
#include "tests/sp/cuda_problem.h"
#include "tests/sp/cuda_twins.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

using namespace ringside;
using sp::Placement;
using sp::RingImpl;
using sp::SegmentForest;
using test::Split;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kScale = 0.2;

bool no_gpu() {
  if (at::cuda::is_available()) {
    return false;
  }
  WARN("no GPU: compiled and linked, not run");
  return true;
}

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes).to(dtype);
}

sp::DeviceMoves device_moves(const sp::RowMoves& moves, at::Device device) {
  std::vector<int64_t> values;
  for (const sp::RowMove& move : moves.moves) {
    values.insert(values.end(), {move.first, move.from, move.to});
  }
  return {at::tensor(values, at::kLong).view({-1, 3}).to(device), moves.rows};
}

sp::DeviceSums device_sums(const sp::RowSums& sums, at::Device device) {
  std::vector<int64_t> values;
  for (const sp::RowSum& sum : sums.sums) {
    values.insert(values.end(), {sum.first, sum.to, sum.sources_begin, sum.sources_end});
  }
  return {at::tensor(values, at::kLong).view({-1, 4}).to(device),
          at::tensor(sums.sources, at::kLong).to(device), sums.rows};
}

const std::vector<sp::Range> kRows{{7, 19}, {2, 5}, {30, 31}};  // 16 packed rows
constexpr int64_t kWholeRows = 33;

struct Shape {
  int64_t heads, head_dim;
};
const std::vector<Shape> kShapes{{4, 64}, {1, 8}, {3, 5}, {2, 130}};

// A part as it may come: not all heads of a wider tensor, with gaps between the heads where that
// aligns them.
at::Tensor part_of_wider(Shape shape, at::ScalarType dtype) {
  const int64_t spaced = (shape.head_dim + 3) / 4 * 4;
  return random({16, shape.heads + 2, spaced}, dtype)
      .narrow(1, 1, shape.heads)
      .narrow(2, 0, shape.head_dim);
}

// Runs `call` with the CUDA operations and with the CPU's on copies of the same tensors; returns
// both results on the CPU.
template <class Call>
std::vector<at::Tensor> on_both(const sp::RowMoves& moves, Call call) {
  const auto cuda = sp::cuda_varlen_group_ops();
  const test::CpuVarlenGroupOps cpu;
  return {call(*cuda, device_moves(moves, cuda->device())).cpu(),
          call(cpu, device_moves(moves, at::kCPU))};
}

// Blocks of uneven lengths, among them single queries and queries that outnumber their keys.
const std::vector<int64_t> kQueryLengths{70, 1, 130, 9, 64}, kKeyLengths{70, 33, 300, 9, 1};

std::vector<sp::Range> ranges(const std::vector<int64_t>& lengths) {
  std::vector<sp::Range> all;
  int64_t begin = 0;
  for (const int64_t n : lengths) {
    all.push_back({begin, begin + n});
    begin += n;
  }
  return all;
}

struct CallProblem {
  std::vector<int64_t> queries, keys;
  sp::VarlenGroupMask mask;
  Shape kv;
  int64_t query_heads;
};

// out, lse, dq, dk, dv of one call, on the CPU.
std::vector<at::Tensor> run_call(const CallProblem& p, const sp::VarlenGroupOps& ops,
                                 at::ScalarType dtype) {
  at::manual_seed(3);
  const auto total = [](const std::vector<int64_t>& lengths) { return ranges(lengths).back().end; };
  const auto place = [&](const at::Tensor& x) {
    return x.to(at::kBFloat16).to(dtype).to(ops.device());
  };
  const at::Tensor q = place(at::randn({total(p.queries), p.query_heads, p.kv.head_dim}));
  const at::Tensor kv = place(at::randn({total(p.keys), 2 * p.kv.heads, p.kv.head_dim}));
  const at::Tensor dout = place(at::randn(q.sizes()));
  const at::Tensor k = kv.narrow(1, 0, p.kv.heads), v = kv.narrow(1, p.kv.heads, p.kv.heads);
  const auto call = sp::make_varlen_call(ranges(p.queries), ranges(p.keys), p.mask, ops.device());
  const auto [out, lse] = ops.attend(q, k, v, call, kScale);
  const auto [dq, dk, dv] = ops.attend_backward(dout, q, k, v, out, lse, call, kScale);
  return {out.cpu(), lse.cpu(), dq.cpu(), dk.cpu(), dv.cpu()};
}

test::Target cuda() { return {sp::cuda_kernels(), at::kBFloat16}; }

std::vector<SegmentForest> packs() {
  return {
      SegmentForest::of_documents({700}), SegmentForest::of_documents({300, 3, 1, 1, 90, 65}),
      SegmentForest({{-1, 200}, {0, 40}, {0, 70}, {0, 1}, {0, 33}, {-1, 60}, {5, 20}, {5, 128}})};
}

// The kernel's own error on plain documents of bf16 numbers: what every split is measured by.
std::vector<double> error_of_one_call(const sp::HeadShape& heads) {
  const auto p =
      test::rounded(test::make_problem(SegmentForest::of_documents({300, 3, 1, 1, 90, 65}), heads),
                    at::kBFloat16);
  return test::relative_errors(
      test::solve_in_one_call(p, *sp::cuda_varlen_group_ops(), at::kBFloat16),
      test::solve_densely(p));
}

void check_errors(const test::Solution& got, const test::Solution& expected,
                  const std::vector<double>& once) {
  const auto errors = test::relative_errors(got, expected);
  for (std::size_t i = 0; i < errors.size(); ++i) {
    INFO("tensor " << i << " of out, dq, dk, dv");
    CHECK(errors[i] <= 2 * once[i]);
  }
  if (got.lse.defined()) {
    CHECK(test::relative_error(got.lse, expected.lse) < 1e-4);
  }
}

}  // namespace

TEST_CASE("CUDA gathers the same rows as its CPU twin", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  at::manual_seed(1);
  const sp::RowMoves moves = sp::to_packed(kRows);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const Shape shape : kShapes) {
      const at::Tensor wide = random({kWholeRows, shape.heads, 2 * shape.head_dim}, dtype);
      const at::Tensor lse = random({kWholeRows, shape.heads}, dtype);
      // Dense rows, rows with a gap behind them, rows that are not dense, a row that is repeated.
      for (const at::Tensor& rows :
           {wide, wide.view({kWholeRows, 1, -1}).narrow(2, shape.head_dim, shape.head_dim),
            wide.narrow(2, 1, shape.head_dim), lse, lse.narrow(0, 0, 1).expand({kWholeRows, -1})}) {
        const auto got =
            on_both(moves, [&](const sp::VarlenGroupOps& ops, const sp::DeviceMoves& m) {
              return ops.gather_rows(rows.to(ops.device()), m);
            });
        CHECK(at::equal(got[0], got[1]));
      }
    }
  }
}

TEST_CASE("CUDA adds rows as its CPU twin does", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  at::manual_seed(2);
  // One source for each row, and up to three.
  const sp::RowSums several{{{0, 7, 0, 1}, {3, 20, 1, 4}, {5, 2, 4, 6}}, {0, 3, 5, 9, 11, 13}, 8};
  const auto cuda = sp::cuda_varlen_group_ops();
  const test::CpuVarlenGroupOps cpu;
  for (const sp::RowSums& sums : {sp::as_sums(sp::from_packed(kRows)), several}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
      for (const Shape shape : kShapes) {
        const at::Tensor part = part_of_wider(shape, dtype);
        const at::Tensor before =
            random({kWholeRows, shape.heads + 3, shape.head_dim}, sp::accumulation_dtype(dtype));
        const auto run = [&](const sp::VarlenGroupOps& ops) {
          at::Tensor whole = before.clone().to(ops.device());
          ops.add_rows(whole, part.to(ops.device()), device_sums(sums, ops.device()), 2);
          return whole.cpu();
        };
        const at::Tensor got = run(*cuda);
        CHECK(test::max_abs_diff(got, run(cpu)) < 1e-6);
        CHECK(!at::equal(got, before));
      }
    }
  }
}

TEST_CASE("CUDA merges and writes rows as its CPU twin does", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  at::manual_seed(3);
  const sp::RowMoves moves = sp::from_packed(kRows);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    const auto wide = sp::accumulation_dtype(dtype);
    for (const Shape shape : kShapes) {
      const sp::PartialAttention part{part_of_wider(shape, dtype),
                                      at::randn({shape.heads, 16}, wide) * 30};
      const sp::PartialAttention before{
          at::randn({kWholeRows, shape.heads + 3, shape.head_dim}, wide),
          at::randn({kWholeRows, shape.heads + 3}, wide) * 30};
      before.lse[8] = -kInfinity;  // of packed row 1
      part.lse.select(1, 1).fill_(-kInfinity);
      before.lse[9] = -kInfinity;
      part.lse.select(1, 3).fill_(-kInfinity);
      for (const bool merge : {true, false}) {
        const auto run = [&](const sp::VarlenGroupOps& ops, const sp::DeviceMoves& m, bool lse) {
          const auto device = ops.device();
          sp::PartialAttention whole{before.out.clone().to(device), before.lse.clone().to(device)};
          const sp::PartialAttention placed{part.out.to(device), part.lse.to(device)};
          merge ? ops.merge_rows(whole, placed, m, 2) : ops.write_rows(whole, placed, m, 2);
          return lse ? whole.lse : whole.out;
        };
        const auto out =
            on_both(moves, [&](const auto& ops, const auto& m) { return run(ops, m, false); });
        const auto lse =
            on_both(moves, [&](const auto& ops, const auto& m) { return run(ops, m, true); });
        CHECK(test::max_abs_diff(out[0], out[1]) < 1e-5);
        CHECK(at::equal(lse[0] == -kInfinity, lse[1] == -kInfinity));
        const auto finite = [](const at::Tensor& x) { return x.masked_fill(x == -kInfinity, 0); };
        CHECK(test::max_abs_diff(finite(lse[0]), finite(lse[1])) < 1e-4);
        if (merge) {
          CHECK(out[0][8].narrow(0, 2, shape.heads).abs().max().item<double>() == 0.0);
        }
      }
    }
  }
}

TEST_CASE("a flash call equals its CPU twin for every mask, length and head group", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  const std::vector<int64_t> square{70, 1, 130, 9};
  const std::vector<int64_t> ones{1, 1, 1};
  const std::vector<CallProblem> problems{{kQueryLengths, kKeyLengths, {-1, -1}, {2, 64}, 4},
                                          {square, square, {-1, 0}, {2, 64}, 4},
                                          {square, square, {-1, 0}, {3, 128}, 3},
                                          {square, square, {-1, 0}, {1, 256}, 2},
                                          {square, {90, 21, 150, 29}, {19, 0}, {2, 64}, 2},
                                          {{30, 8}, {31, 70}, {12, -1}, {1, 8}, 1},
                                          {{30, 8}, {31, 70}, {20, 40}, {1, 64}, 2},
                                          {ones, {40, 1, 7}, {-1, -1}, {2, 64}, 8}};
  for (const CallProblem& p : problems) {
    const auto exact = run_call(p, test::CpuVarlenGroupOps(), at::kDouble);
    const auto rounded = run_call(p, test::CpuVarlenGroupOps(), at::kBFloat16);
    const auto got = run_call(p, *sp::cuda_varlen_group_ops(), at::kBFloat16);
    INFO("left " << p.mask.left << ", right " << p.mask.right << ", heads " << p.query_heads
                 << " / " << p.kv.heads << ", head dim " << p.kv.head_dim);
    CHECK(test::max_abs_diff(got[1], exact[1]) < 1e-3);
    for (const std::size_t i : {0, 2, 3, 4}) {
      INFO("tensor " << i << " of out, lse, dq, dk, dv");
      CHECK(test::relative_error(got[i], exact[i]) <=
            2 * test::relative_error(rounded[i], exact[i]) + 1e-4);
    }
  }
}

TEST_CASE("a cuDNN call equals its CPU twin", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  if (at::cuda::getCurrentDeviceProperties()->major < 9) {
    WARN("this GPU has no such kernels: not run");
    return;
  }
  // Entries with padding and without.
  const std::vector<std::vector<int64_t>> documents{{70, 1, 130, 9}, {256}, {300, 512, 2}, {2100}};
  for (const auto& lengths : documents) {
    for (const auto& [kv, query_heads] :
         {std::pair{Shape{2, 64}, 4}, {{1, 128}, 3}, {{2, 8}, 2}, {{1, 72}, 1}}) {
      const CallProblem p{lengths, lengths, {-1, 0}, kv, query_heads};
      const auto ops = sp::cuda_varlen_group_ops(/*least_cudnn_rows=*/1);
      const auto exact = run_call(p, test::CpuVarlenGroupOps(), at::kDouble);
      const auto rounded = run_call(p, test::CpuVarlenGroupOps(), at::kBFloat16);
      const auto got = run_call(p, *ops, at::kBFloat16);
      INFO("first of " << lengths.size() << " documents " << lengths[0] << ", heads " << query_heads
                       << " / " << kv.heads << ", head dim " << kv.head_dim);
      CHECK(test::max_abs_diff(got[1], exact[1]) < 1e-3);
      for (const std::size_t i : {0, 2, 3, 4}) {
        INFO("tensor " << i << " of out, lse, dq, dk, dv");
        CHECK(test::relative_error(got[i], exact[i]) <=
              2 * test::relative_error(rounded[i], exact[i]) + 1e-4);
      }
    }
  }
}

TEST_CASE("cuDNN takes long causal documents, and none where results must be reproducible",
          "[gpu]") {
  if (no_gpu() || at::cuda::getCurrentDeviceProperties()->major < 9) {
    return;
  }
  const at::Tensor q = at::empty({10, 2, 64}, at::dtype(at::kBFloat16).device(at::kCUDA));
  const auto call = [](const std::vector<int64_t>& queries, const std::vector<int64_t>& keys,
                       sp::VarlenGroupMask mask) {
    return sp::make_varlen_call(ranges(queries), ranges(keys), mask, at::kCUDA);
  };
  CHECK(sp::is_for_cudnn(q, call({9000}, {9000}, {-1, 0})));
  CHECK(sp::is_for_cudnn(q, call({9000, 10, 3}, {9000, 10, 3}, {-1, 0})));
  CHECK_FALSE(sp::is_for_cudnn(q, call({2000, 2000, 2000}, {2000, 2000, 2000}, {-1, 0})));
  CHECK_FALSE(sp::is_for_cudnn(q, call({9000}, {9000}, {-1, -1})));
  CHECK_FALSE(sp::is_for_cudnn(q, call({9000}, {9000}, {100, 0})));
  CHECK_FALSE(sp::is_for_cudnn(q, call({9000}, {9500}, {-1, 0})));
  CHECK_FALSE(sp::is_for_cudnn(q.to(at::kFloat), call({9000}, {9000}, {-1, 0})));
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  CHECK_FALSE(sp::is_for_cudnn(q, call({9000}, {9000}, {-1, 0})));
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

TEST_CASE("attention on one GPU is as exact as a single flash call", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  const sp::HeadShape heads{8, 2, 64};
  const auto once = error_of_one_call(heads);
  for (const SegmentForest& forest : packs()) {
    for (const int64_t window : {0, 2, 50}) {
      auto p = test::rounded(test::make_problem(forest, heads), at::kBFloat16);
      p.window = window;
      const auto expected = test::solve_densely(p);
      const auto alone = sp::make_single_rank_communicator();
      const auto plan = std::make_shared<const sp::AttentionPlan>(sp::plan_attention(
          sp::SequenceLayout(forest, 1, 1), heads, 0, {RingImpl::kP2p, 0, window, true}));
      const auto leaf = [](const at::Tensor& x) { return cuda().place(x).requires_grad_(); };
      const at::Tensor q = leaf(p.q), k = leaf(p.k), v = leaf(p.v);
      const at::Tensor out = sp::attention(
          q, k, v, {sp::cuda_kernels()->prepare(plan, q.options()), alone, alone}, {p.scale, {}});
      out.backward(cuda().place(p.dout));
      INFO("tokens " << forest.num_tokens() << ", window " << window);
      check_errors({out.detach(), {}, q.grad(), k.grad(), v.grad(), {}}, expected, once);
    }
  }
}

TEST_CASE("several ranks on one GPU are as exact as a single flash call", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  for (const sp::HeadShape heads : {sp::HeadShape{8, 2, 64}, sp::HeadShape{6, 2, 32}}) {
    const auto once = error_of_one_call(heads);
    for (const SegmentForest& forest : packs()) {
      const auto p = test::rounded(test::make_problem(forest, heads), at::kBFloat16);
      const auto expected = test::solve_densely(p);
      for (const sp::MeshShape shape :
           {sp::MeshShape{1, 2, 1}, sp::MeshShape{1, 4, 1}, sp::MeshShape{1, 1, 2},
            sp::MeshShape{1, 1, 4}, sp::MeshShape{1, 2, 2}}) {
        for (const Split& split :
             {Split{RingImpl::kP2p, Placement::kDocumentAware},
              Split{RingImpl::kP2p, Placement::kZigzag},
              Split{RingImpl::kAllGather, Placement::kZigzag, /*heads_k_stride=*/1}}) {
          INFO("tokens " << forest.num_tokens() << ", ring " << shape.ring << ", ulysses "
                         << shape.ulysses);
          check_errors(test::solve_on_mesh_with(p, split, shape, cuda()), expected, once);
        }
      }
    }
  }
}

TEST_CASE("fp32 and fp64 on CUDA equal the dense oracle", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  for (const SegmentForest& forest : packs()) {
    for (const int64_t window : {0, 50}) {
      auto p = test::make_problem(forest, {6, 2, 20});
      p.window = window;
      const auto expected = test::solve_densely(p);
      for (const sp::MeshShape shape : {sp::MeshShape{1, 1, 1}, sp::MeshShape{1, 2, 2}}) {
        for (const auto& [dtype, bound] :
             {std::pair{at::kDouble, 1e-10}, std::pair{at::kFloat, 1e-3}}) {
          const auto got =
              test::solve_on_mesh_with(p, {RingImpl::kP2p}, shape, {sp::cuda_kernels(), dtype});
          CHECK(test::worst_difference(got, expected) < bound);
        }
      }
    }
  }
}

TEST_CASE("outputs, dk and dv on CUDA are the same bits on every run", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  auto p = test::make_problem(packs()[2], {8, 2, 64});
  p.window = 30;  // with it, keys are repeated within a varlen_group
  const Split split{RingImpl::kP2p, Placement::kZigzag};
  const auto first = test::solve_on_mesh_with(p, split, {1, 1, 1}, cuda());
  const auto second = test::solve_on_mesh_with(p, split, {1, 1, 1}, cuda());
  CHECK(at::equal(first.out, second.out));
  CHECK(at::equal(first.lse, second.lse));
  CHECK(at::equal(first.dk, second.dk));
  CHECK(at::equal(first.dv, second.dv));
}

TEST_CASE("CUDA attention refuses what its kernels do not have", "[gpu]") {
  CHECK_THROWS_WITH(sp::cuda_varlen_group_ops()->compute_dtype(at::kInt),
                    Catch::Contains("fp32 or fp64, got Int"));
  if (no_gpu()) {
    return;
  }
  const CallProblem odd{{4}, {4}, {-1, 0}, {1, 12}, 1};
  CHECK_THROWS_WITH(run_call(odd, *sp::cuda_varlen_group_ops(), at::kBFloat16),
                    Catch::Contains("head dim 12"));
  const CallProblem heads{{4}, {4}, {-1, 0}, {2, 16}, 3};
  CHECK_THROWS_AS(run_call(heads, *sp::cuda_varlen_group_ops(), at::kBFloat16), c10::Error);
}

TEST_CASE("groups of one rank need no NCCL call", "[gpu]") {
  const sp::GroupRendezvous rendezvous{c10::make_intrusive<c10d::HashStore>(), "",
                                       std::chrono::seconds(5)};
  const auto connect = sp::nccl_groups(sp::Mesh({1, 1, 1}, 0), rendezvous, at::Device("cuda:0"));
  CHECK(connect(sp::axes::kLoss)->size() == 1);
  CHECK(connect(sp::axes::kRing)->size() == 1);
}

// With a GPU for each rank, tests/rl/training_cuda_test.cpp has groups of several.
TEST_CASE("NCCL's collectives over one rank keep their input", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  const auto comm = sp::make_c10d_communicator(
      sp::make_nccl_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1,
                                  at::Device("cuda:0"), std::chrono::seconds(20)));
  const at::Tensor input = at::arange(12, at::dtype(at::kFloat).device("cuda:0")).view({4, 3});
  at::Tensor tensor = input.clone();
  comm->all_reduce_sum(tensor, "test");
  comm->all_reduce_max(tensor, "test");
  comm->broadcast(tensor, 0, "test");
  CHECK(at::equal(tensor, input));
  CHECK(at::equal(comm->all_gather(input, "test"), input.unsqueeze(0)));
  CHECK(at::equal(comm->all_gather_rows(input, {4}, "test"), input));
  CHECK(at::equal(comm->reduce_scatter_rows(input, {4}, "test"), input));
  CHECK(at::equal(comm->all_to_all(input.flatten(), {12}, {12}, "test"), input.flatten()));
}

TEST_CASE("an NCCL group refuses another device than CUDA's", "[gpu]") {
  CHECK_THROWS_WITH(sp::make_nccl_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1,
                                                at::Device(at::kCPU), std::chrono::seconds(5)),
                    Catch::Contains("needs a CUDA device with an index, got cpu"));
}
