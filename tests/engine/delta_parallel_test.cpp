// Guards: a split of documents, prefix trees, head groups and ranks that changes an output or a
// gradient of a gated delta net; a document that reaches another; bytes sent that the plan does not
// predict. Oracle: the plain recurrence and convolution, every document for itself, in fp64.
#include <ATen/ATen.h>

#include <random>
#include <vector>

#include "engine/runner/sequence_parallel_delta.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

namespace ringside::engine {
namespace {

using sp::Placement;
using sp::SegmentForest;
using test::max_abs_diff;

// channels, conv, log decay, decay bias; packed.
using Inputs = std::array<at::Tensor, 4>;

struct Problem {
  SegmentForest forest;
  sp::StateShape shape;
  Inputs inputs;
  at::Tensor d_out;
};

Problem make_problem(SegmentForest forest, sp::StateShape shape) {
  at::manual_seed(3);
  const auto random = [](std::vector<int64_t> size) { return at::randn(size, at::kDouble); };
  const int64_t s = forest.num_tokens(), g = shape.key_heads, v = shape.values_per_group();
  return {std::move(forest),
          shape,
          {random({s, g, shape.channels()}), random({g, shape.conv_channels(), shape.conv_taps}),
           random({g, v}) * 0.3 - 4.0,  // slow decay: what leaks can be seen
           random({g, v}) * 0.1},
          random({s, g, shape.out_channels()})};
}

at::Tensor unit(const at::Tensor& x) { return x / (x.square().sum(-1, true) + 1e-6).sqrt(); }

// One document, row by row.
at::Tensor mix_document(const sp::StateShape& shape, const at::Tensor& x_sGC, const Inputs& in) {
  const int64_t n = x_sGC.size(0), g = shape.key_heads, per_group = shape.values_per_group();
  const int64_t h = shape.value_heads, k = shape.key_dim, v = shape.value_dim;
  const int64_t c = shape.conv_channels(), taps = shape.conv_taps;
  const at::Tensor padded =
      at::cat({at::zeros({taps - 1, g, c}, at::kDouble), x_sGC.narrow(2, 0, c)});
  at::Tensor y = at::zeros({n, g, c}, at::kDouble);
  for (int64_t j = 0; j < taps; ++j) {
    y = y + padded.narrow(0, j, n) * in[1].select(2, j);
  }
  y = at::silu(y);
  const auto q = (unit(y.narrow(2, 0, k)) / std::sqrt(static_cast<double>(k)))
                     .repeat_interleave(per_group, 1)
                     .unbind();
  const auto keys = unit(y.narrow(2, k, k)).repeat_interleave(per_group, 1).unbind();
  const auto values = y.narrow(2, 2 * k, per_group * v).reshape({n, h, v}).unbind();
  const auto beta = at::sigmoid(x_sGC.narrow(2, c, per_group)).reshape({n, h}).unbind();
  const auto decay =
      (-in[2].exp() * at::softplus(x_sGC.narrow(2, c + per_group, per_group) + in[3]))
          .exp()
          .reshape({n, h})
          .unbind();
  at::Tensor state = at::zeros({h, k, v}, at::kDouble);
  std::vector<at::Tensor> out;
  for (int64_t t = 0; t < n; ++t) {
    state = state * decay[t].view({h, 1, 1});
    const at::Tensor read = (state * keys[t].unsqueeze(2)).sum(1);
    state = state + keys[t].unsqueeze(2) * (beta[t].unsqueeze(1) * (values[t] - read)).unsqueeze(1);
    out.push_back((state * q[t].unsqueeze(2)).sum(1));
  }
  return out.empty() ? at::zeros({0, g, per_group * v}, at::kDouble)
                     : at::stack(out).view({n, g, per_group * v});
}

// Output, then the gradients of the inputs.
using Solution = std::vector<at::Tensor>;

Solution solve_in_one_process(const Problem& p) {
  Inputs in;
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = p.inputs[i].clone().requires_grad_();
  }
  std::vector<at::Tensor> outs;
  std::vector<at::Tensor> paths;  // rows of each segment with all its ancestors
  for (int64_t s = 0; s < p.forest.num_segments(); ++s) {
    const sp::Range own = p.forest.packed(s);
    const at::Tensor rows = in[0].narrow(0, own.begin, own.size());
    const int64_t parent = p.forest.parent(s);
    paths.push_back(parent < 0 ? rows : at::cat({paths[parent], rows}));
    const at::Tensor out = mix_document(p.shape, paths.back(), in);
    outs.push_back(out.narrow(0, out.size(0) - own.size(), own.size()));
  }
  const at::Tensor out = at::cat(outs);
  out.backward(p.d_out);
  return {out.detach(), in[0].grad(), in[1].grad(), in[2].grad(), in[3].grad()};
}

struct RankSolution {
  std::vector<int64_t> packed;
  Solution local;
  int64_t ring_bytes = 0;
};

int64_t sent(const sp::Communicator& comm) {
  int64_t bytes = 0;
  for (const auto& [tag, count] : comm.sent_bytes()) {
    bytes += count;
  }
  return bytes;
}

RankSolution solve_on_rank(const Problem& p, Placement placement, const sp::Mesh& mesh,
                           const sp::ProcessGroups& groups) {
  const sp::SequenceLayout layout(p.forest, mesh.shape().ring, mesh.shape().ulysses, placement);
  const auto plan =
      std::make_shared<const sp::StatePlan>(sp::plan_state(layout, p.shape, mesh.sp_rank()));
  RankSolution result{layout.packed_indices(mesh.sp_rank()), {}, 0};
  const at::Tensor index = at::tensor(result.packed, at::kLong);
  Inputs in = p.inputs;
  in[0] = in[0].index_select(0, index);
  for (at::Tensor& x : in) {
    x = x.clone().requires_grad_();
  }
  const auto ulysses = groups.tensors(sp::axes::kUlysses), ring = groups.tensors(sp::axes::kRing);
  ulysses->reset_counters();
  ring->reset_counters();
  SequenceParallelDelta backend(std::make_shared<const PreparedState>(plan, at::kCPU), ulysses,
                                ring);
  const at::Tensor out = backend.mix(0, {p.shape, in[0], in[1], in[2], in[3]});
  const int64_t forward = sp::forward_bytes(plan->traffic, 8, 8);
  TORCH_CHECK(sent(*ulysses) + sent(*ring) == forward, "sent ", sent(*ulysses) + sent(*ring),
              " bytes forward, planned ", forward);
  out.backward(p.d_out.index_select(0, index));
  const int64_t all = forward + sp::backward_bytes(plan->traffic, 8, 8);
  TORCH_CHECK(sent(*ulysses) + sent(*ring) == all, "sent ", sent(*ulysses) + sent(*ring),
              " bytes, planned ", all);
  result.ring_bytes = sent(*ring);
  result.local = {out.detach()};
  for (const at::Tensor& x : in) {
    result.local.push_back(x.grad().defined() ? x.grad() : at::zeros_like(x));
  }
  return result;
}

std::vector<RankSolution> solve_on_mesh(const Problem& p, Placement placement, sp::MeshShape mesh) {
  std::vector<RankSolution> ranks(mesh.world_size());
  test::run_ranks_in_memory(mesh, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    ranks[mesh.rank()] = solve_on_rank(p, placement, mesh, groups);
  });
  return ranks;
}

// Rows put in their places, gradients of parameters summed.
Solution join(const Problem& p, const std::vector<RankSolution>& ranks) {
  Solution whole{at::zeros_like(p.d_out), at::zeros_like(p.inputs[0])};
  for (std::size_t i = 1; i < p.inputs.size(); ++i) {
    whole.push_back(at::zeros_like(p.inputs[i]));
  }
  for (const RankSolution& rank : ranks) {
    const at::Tensor index = at::tensor(rank.packed, at::kLong);
    whole[0].index_copy_(0, index, rank.local[0]);
    whole[1].index_copy_(0, index, rank.local[1]);
    for (std::size_t i = 2; i < whole.size(); ++i) {
      whole[i] += rank.local[i];
    }
  }
  return whole;
}

void check_close(const Solution& found, const Solution& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(max_abs_diff(found[i], expected[i]) < 1e-10);
  }
}

const sp::StateShape kShape{3, 6, 4, 3, 4};

std::vector<SegmentForest> forests() {
  return {SegmentForest::of_documents({150}),
          SegmentForest::of_documents({1}),
          SegmentForest::of_documents({90, 3, 1, 1, 5, 2, 2, 7}),
          SegmentForest::of_documents({2, 1, 3, 66}),
          SegmentForest({{-1, 80}, {0, 9}, {0, 1}, {0, 70}, {-1, 2}, {4, 3}, {4, 2}}),
          SegmentForest({{-1, 21},
                         {0, 9},
                         {1, 14},
                         {1, 6},
                         {1, 0},
                         {0, 30},
                         {5, 1},
                         {5, 12},
                         {-1, 8},
                         {8, 0},
                         {9, 13},
                         {9, 2},
                         {-1, 4}})};
}

std::vector<Placement> placements(sp::MeshShape mesh) {
  return mesh.ring == 1
             ? std::vector{Placement::kZigzag}
             : std::vector{Placement::kDocumentAware, Placement::kZigzag, Placement::kContiguous};
}

TEST_CASE("every mesh and placement computes each document's own recurrence and gradients") {
  for (const SegmentForest& forest : forests()) {
    const Problem p = make_problem(forest, kShape);
    const Solution expected = solve_in_one_process(p);
    for (const sp::MeshShape mesh :
         {sp::MeshShape{1, 1, 1}, {1, 1, 2}, {1, 1, 3}, {1, 2, 1}, {1, 3, 1}, {1, 2, 2}}) {
      for (const Placement placement : placements(mesh)) {
        CAPTURE(forest.num_segments(), mesh.ring, mesh.ulysses, static_cast<int>(placement));
        check_close(join(p, solve_on_mesh(p, placement, mesh)), expected);
      }
    }
  }
}

TEST_CASE("a change of one document changes nothing in the next, however slow the decay") {
  Problem p = make_problem(SegmentForest::of_documents({70, 75}), kShape);
  p.inputs[2].fill_(-6);
  const auto outputs = [&](const Problem& problem, sp::MeshShape mesh, Placement placement) {
    return join(problem, solve_on_mesh(problem, placement, mesh))[0];
  };
  Problem changed = p;
  changed.inputs[0] = p.inputs[0].clone();
  changed.inputs[0].narrow(0, 0, 70).add_(1.5);
  for (const sp::MeshShape mesh : {sp::MeshShape{1, 1, 2}, {1, 2, 1}, {1, 2, 2}}) {
    for (const Placement placement : {Placement::kDocumentAware, Placement::kZigzag}) {
      const at::Tensor before = outputs(p, mesh, placement),
                       after = outputs(changed, mesh, placement);
      CHECK(after.narrow(0, 70, 75).equal(before.narrow(0, 70, 75)));
      CHECK(max_abs_diff(after.narrow(0, 0, 70), before.narrow(0, 0, 70)) > 1e-3);
    }
  }
}

TEST_CASE("ring bytes do not grow with the documents' length") {
  const auto bytes = [](int64_t length) {
    const Problem p = make_problem(SegmentForest::of_documents({length}), kShape);
    int64_t sum = 0;
    for (const RankSolution& rank : solve_on_mesh(p, Placement::kZigzag, {1, 2, 1})) {
      sum += rank.ring_bytes;
    }
    return sum;
  };
  CHECK(bytes(64) > 0);
  CHECK(bytes(640) == bytes(64));
}

}  // namespace
}  // namespace ringside::engine
