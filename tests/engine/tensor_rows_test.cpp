// Guards the rows that tensor-parallel ranks exchange: one row at a wrong place, or a gradient that
// is summed where it should be taken, would train another model.
#include "engine/nn/tensor_rows.h"

#include <ATen/ATen.h>

#include "engine/params/sharding.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

using OnRank = std::function<void(const std::shared_ptr<sp::Communicator>& ranks)>;

void run_tensor_ranks(int64_t ranks, const OnRank& body) {
  sp::MeshShape shape;
  shape.tensor = ranks;
  test::run_ranks_in_memory(shape,
                            [&](const sp::Mesh&, const sp::ProcessGroups& groups) {
                              body(groups.tensors(sp::axes::kTensor));
                            },
                            {sp::axes::kTensor});
}

// The same numbers on every rank, others for another seed.
at::Tensor numbers(std::vector<int64_t> shape, uint64_t seed, at::ScalarType dtype = at::kDouble) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kDouble).to(dtype);
}

TEST_CASE("gather and scatter of rows are adjoint, for even, uneven and empty parts") {
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t rows : {0, 1, 2, 5, 8, 13}) {
      run_tensor_ranks(ranks, [&](const std::shared_ptr<sp::Communicator>& comm) {
        const RowParts parts = even_rows(comm, rows);
        const at::Tensor all = numbers({rows, 3, 2}, 1);
        const at::Tensor own = own_rows(all, parts).clone().requires_grad_();
        const at::Tensor gathered = gather_rows(own, parts);
        TORCH_CHECK(at::equal(gathered, all), "gathered rows differ");
        // Each rank uses the rows in its own way, so the gradient is the sum.
        std::vector<at::Tensor> weights;
        at::Tensor sum = at::zeros_like(all);
        for (int64_t rank = 0; rank < ranks; ++rank) {
          weights.push_back(numbers({rows, 3, 2}, 10 + rank));
          sum += weights.back();
        }
        (gathered * weights[comm->rank()]).sum().backward();
        TORCH_CHECK(max_abs_diff(own.grad(), own_rows(sum, parts)) < 1e-14, "gradient of a gather");

        const at::Tensor partial = weights[comm->rank()].clone().requires_grad_();
        const at::Tensor scattered = scatter_rows(partial, parts);
        TORCH_CHECK(max_abs_diff(scattered, own_rows(sum, parts)) < 1e-14, "scattered sums");
        (scattered * own_rows(all, parts)).sum().backward();
        TORCH_CHECK(at::equal(partial.grad(), all), "gradient of a scatter");
      });
    }
  }
}

TEST_CASE("rows that every rank uses alike get their own gradient, and not its sum") {
  run_tensor_ranks(3, [&](const std::shared_ptr<sp::Communicator>& comm) {
    const RowParts parts = even_rows(comm, 7);
    const at::Tensor all = numbers({7}, 1), weights = numbers({7}, 2);
    const at::Tensor own = own_rows(all, parts).clone().requires_grad_();
    const at::Tensor replicated = replicate_rows(own, parts);
    TORCH_CHECK(at::equal(replicated, all), "replicated rows differ");
    comm->reset_counters();
    (replicated * weights).sum().backward();
    TORCH_CHECK(at::equal(own.grad(), own_rows(weights, parts)), "gradient of replicated rows");
    TORCH_CHECK(comm->sent_bytes().empty(), "the backward sent bytes");
  });
}

TEST_CASE("partial sums of bf16 are added in fp32 and rounded once; bytes are those of the rows") {
  run_tensor_ranks(4, [&](const std::shared_ptr<sp::Communicator>& comm) {
    const RowParts parts = even_rows(comm, 10);
    at::Tensor sum = at::zeros({10, 64});
    for (int64_t rank = 0; rank < 4; ++rank) {
      sum += numbers({10, 64}, rank, at::kBFloat16).to(at::kFloat);
    }
    comm->reset_counters();
    const at::Tensor scattered =
        scatter_rows(numbers({10, 64}, comm->rank(), at::kBFloat16), parts);
    TORCH_CHECK(at::equal(scattered, own_rows(sum, parts).to(at::kBFloat16)), "not added in fp32");
    const int64_t own = parts.own().size();
    TORCH_CHECK(comm->sent_bytes().at(kTensorTag) == (10 - own) * 64 * 2, "bytes of a scatter");
    gather_rows(scattered, parts);
    TORCH_CHECK(comm->sent_bytes().at(kTensorTag) == (10 - own + 3 * own) * 64 * 2,
                "bytes of a gather");
  });
}

TEST_CASE("one rank: the tensor itself, whatever the rows") {
  const at::Tensor x = numbers({5, 2}, 1);
  for (const RowParts& parts :
       {RowParts{}, even_rows(nullptr, 5), even_rows(sp::make_single_rank_communicator(), 5)}) {
    CHECK(gather_rows(x, parts).is_same(x));
    CHECK(scatter_rows(x, parts).is_same(x));
    CHECK(replicate_rows(x, parts).is_same(x));
    CHECK(own_rows(x, parts).is_same(x));
  }
}

TEST_CASE("rows that are not those of the parts are refused before anything is sent") {
  run_tensor_ranks(2, [&](const std::shared_ptr<sp::Communicator>& comm) {
    const RowParts parts = even_rows(comm, 4);
    comm->reset_counters();
    using RowsFunction = at::Tensor (*)(const at::Tensor&, const RowParts&);
    for (const RowsFunction function : {RowsFunction(gather_rows), RowsFunction(scatter_rows),
                                        RowsFunction(replicate_rows), RowsFunction(own_rows)}) {
      bool refused = false;
      try {
        function(numbers({3, 2}, 1), parts);
      } catch (const c10::Error&) {
        refused = true;
      }
      TORCH_CHECK(refused && comm->sent_bytes().empty(), "3 rows of 4 were accepted");
    }
  });
}

}  // namespace
}  // namespace ringside::engine
