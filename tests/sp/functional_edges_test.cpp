// Guards: gathers that are wrong when the ranks' losses differ, padding that leaks in, a loss or a
// gradient that counts a rank twice, 0 tokens that make NaN, gradients summed over an axis that
// sharding has summed already.
#include <cmath>
#include <limits>

#include "sp/functional/gather.h"
#include "sp/functional/gradient_sync.h"
#include "sp/functional/loss.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

using namespace ringside;
using test::max_abs_diff;

namespace {

at::Tensor part(const at::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths,
                int64_t rank) {
  return x.split_with_sizes(lengths, dim)[rank].clone().requires_grad_();
}

// A loss of its own for each rank; rank 1 looks at one column only.
at::Tensor loss_of_rank(const at::Tensor& whole, const at::Tensor& weights, int64_t rank) {
  const at::Tensor cubes = whole.pow(3) * weights[rank];
  return rank == 1 ? cubes.select(1, 2).sum() : cubes.sum();
}

}  // namespace

TEST_CASE(
    "gather_outputs with a different loss on every rank equals the sum of the losses in one "
    "process",
    "[hazard]") {
  at::manual_seed(2);
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{4, 4}, {0, 5, 3}, {3, 1, 0, 4}}) {
    const at::Tensor x = at::randn({2, 8}, at::kDouble);
    const at::Tensor weights = at::randn({static_cast<int64_t>(lengths.size()), 2, 8}, at::kDouble);
    const at::Tensor reference = x.clone().requires_grad_();
    for (std::size_t p = 0; p < lengths.size(); ++p) {
      loss_of_rank(reference, weights, static_cast<int64_t>(p)).backward();
    }
    test::run_ranks(
        {1, 1, static_cast<int64_t>(lengths.size())}, [&](const sp::Mesh& mesh, const auto& comms) {
          const at::Tensor mine = part(x, 1, lengths, mesh.rank());
          const at::Tensor whole = sp::gather_outputs(mine, -1, comms.tensors(sp::axes::kSp));
          TORCH_CHECK(at::equal(whole, x));
          loss_of_rank(whole, weights, mesh.rank()).backward();
          const double worst =
              max_abs_diff(mine.grad(), reference.grad().split_with_sizes(lengths, 1)[mesh.rank()]);
          TORCH_CHECK(worst < 1e-12, "gradient differs by ", worst);
        });
  }
}

TEST_CASE("gather_outputs_unpadded leaves padding out, sends none of it and gives it no gradient") {
  const at::Tensor x = at::arange(1.0, 8.0, at::kDouble);  // 7 rows in 4 shards of 3: 3, 3, 1, 0
  test::run_ranks({1, 4, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    at::Tensor mine = at::full({3}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
    const int64_t real = std::vector<int64_t>{3, 3, 1, 0}[mesh.rank()];
    mine.narrow(0, 0, real).copy_(x.narrow(0, std::min<int64_t>(3 * mesh.rank(), 7), real));
    mine.requires_grad_();
    const at::Tensor whole = sp::gather_outputs_unpadded(mine, 0, 7, comms.tensors(sp::axes::kSp));
    TORCH_CHECK(at::equal(whole, x));
    TORCH_CHECK(comms.tensors(sp::axes::kSp)->sent_bytes().at("gather_outputs") == 3 * 8 * real);
    (whole * (mesh.rank() + 1.0)).sum().backward();
    const at::Tensor expected =
        at::cat({at::full({real}, 10.0, at::kDouble), at::zeros({3 - real}, at::kDouble)});
    TORCH_CHECK(at::equal(mine.grad(), expected), mine.grad());
    bool refused = false;
    try {
      sp::gather_outputs_unpadded(mine, 0, 13, comms.tensors(sp::axes::kSp));
    } catch (const c10::Error&) {
      refused = true;
    }
    TORCH_CHECK(refused);
  });
}

TEST_CASE("slices tile the whole, and their gradients sum to its gradient") {
  const at::Tensor x = at::arange(14, at::kDouble).view({2, 7});
  test::run_ranks({1, 3, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const at::Tensor whole = x.clone().requires_grad_();
    const at::Tensor slice = sp::slice_input_tensor(whole, -1, *comms.tensors(sp::axes::kSp));
    TORCH_CHECK(slice.size(1) == (mesh.rank() == 0 ? 3 : 2));
    TORCH_CHECK(at::equal(sp::gather_outputs(slice.detach(), 1, comms.tensors(sp::axes::kSp)), x));
    slice.square().sum().backward();
    TORCH_CHECK(whole.grad().count_nonzero().item<int64_t>() ==
                slice.detach().count_nonzero().item<int64_t>());
    at::Tensor sum = whole.grad().contiguous();
    comms.tensors(sp::axes::kSp)->all_reduce_sum(sum, "sum");
    TORCH_CHECK(at::equal(sum, 2 * x));
  });
}

TEST_CASE("the loss over ranks is the mean over all tokens, once") {
  const std::vector<double> values{1.5, -2.0, 0.25, 4.0, 3.0};
  const double mean = (1.5 - 2.0 + 0.25 + 4.0 + 3.0) / 5;
  for (const std::vector<int64_t>& tokens : {std::vector<int64_t>{3, 2}, {4, 0, 1}, {0, 0, 5}}) {
    for (const sp::LossForm form : {sp::LossForm::kMean, sp::LossForm::kSum}) {
      test::run_ranks({1, 1, static_cast<int64_t>(tokens.size())}, [&](const sp::Mesh& mesh,
                                                                       const auto& comms) {
        const at::Tensor scale =
            at::ones({}, at::kDouble).requires_grad_();  // a parameter all tokens share
        const at::Tensor mine =
            part(at::tensor(values, at::kDouble), 0, tokens, mesh.rank()).detach() * scale;
        // Without a token the mean is NaN.
        const at::Tensor local = form == sp::LossForm::kMean ? mine.mean() : mine.sum();
        const at::Tensor loss = sp::reduce_sequence_parallel_loss(
            local, tokens[mesh.rank()], *comms.tensors(sp::axes::kSp), form);
        TORCH_CHECK(std::abs(loss.template item<double>() - mean) < 1e-14, loss);
        loss.backward();
        const std::vector<at::Tensor> scales{scale};
        sp::sync_sp_parameter_gradients(scales, comms, sp::CpFsdpMode::kNone);
        TORCH_CHECK(std::abs(scale.grad().template item<double>() - mean) < 1e-14, scale.grad());
      });
    }
  }
}

TEST_CASE("no token anywhere: loss 0 and gradient 0, never NaN") {
  for (const sp::LossForm form : {sp::LossForm::kMean, sp::LossForm::kSum}) {
    test::run_ranks({1, 1, 3}, [&](const sp::Mesh&, const sp::ProcessGroups& comms) {
      const at::Tensor local =
          at::full({1}, std::numeric_limits<float>::quiet_NaN()).requires_grad_();
      const at::Tensor loss =
          sp::reduce_sequence_parallel_loss(local, 0, *comms.tensors(sp::axes::kSp), form);
      TORCH_CHECK(loss.sizes() == local.sizes() && loss.scalar_type() == at::kFloat);
      loss.backward();
      TORCH_CHECK(loss.item<float>() == 0.0f && local.grad().item<float>() == 0.0f, loss,
                  local.grad());
    });
  }
  const auto alone = sp::make_single_rank_communicator();
  CHECK_THROWS_AS(sp::reduce_sequence_parallel_loss(at::ones({}), -1, *alone),
                  std::invalid_argument);
  CHECK_THROWS_AS(sp::reduce_sequence_parallel_loss(at::ones({2}), 1, *alone), c10::Error);
}

TEST_CASE("gradients are summed over the axes that sharding leaves, and no other") {
  test::run_ranks({2, 2, 2}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto synced = [&](sp::CpFsdpMode mode) {
      // Not contiguous; a frozen parameter; one without a gradient on odd ranks.
      const at::Tensor a = at::zeros({2, 3}, at::kDouble).requires_grad_(),
                       frozen = at::zeros({2}, at::kDouble),
                       b = at::zeros({1}, at::kDouble).requires_grad_();
      a.mutable_grad() =
          at::full({3, 2}, std::ldexp(1.0, static_cast<int>(mesh.rank())), at::kDouble).t();
      if (mesh.rank() % 2 == 0) {
        b.mutable_grad() =
            at::full({1}, std::ldexp(1.0, static_cast<int>(mesh.rank())), at::kDouble);
      }
      sp::sync_sp_parameter_gradients({a, frozen, b}, comms, mode);
      TORCH_CHECK(!frozen.grad().defined() &&
                  at::equal(a.grad(), at::full_like(a.grad(), a.grad()[0][0].item())));
      return std::pair{a.grad()[0][0].item<double>(), b.grad().item<double>()};
    };
    const auto sums = [&](sp::Axes axis) {
      std::pair<double, double> sum{0, 0};
      for (const int64_t rank : mesh.ranks(axis)) {
        const double value = std::ldexp(1.0, static_cast<int>(rank));
        sum = {sum.first + value, sum.second + (rank % 2 == 0 ? value : 0)};
      }
      return sum;
    };
    TORCH_CHECK(synced(sp::CpFsdpMode::kAll) == sums(sp::axes::kNone));
    TORCH_CHECK(synced(sp::CpFsdpMode::kUlyssesOnly) == sums(sp::axes::kRing));
    TORCH_CHECK(synced(sp::CpFsdpMode::kRingOnly) == sums(sp::axes::kUlysses));
    TORCH_CHECK(synced(sp::CpFsdpMode::kNone) == sums(sp::axes::kSp));
    bool refused = false;
    try {
      sp::sync_sp_gradients({at::Tensor()}, comms, sp::CpFsdpMode::kNone);
    } catch (const c10::Error&) {
      refused = true;
    }
    TORCH_CHECK(refused);
  });
}
