// Rows of images between ranks on a device: the bits of the CPU, and no wait of the host. Oracle:
// the same exchange over Gloo.
#include <memory>
#include <vector>

#include "sp/images/row_exchange.h"
#include "tests/standin/two_ranks.h"
#include "tests/support/assertion_lock.h"
#include "tests/support/catch.h"

namespace ringside::standin {
namespace {

struct RowsAndGradient {
  at::Tensor rows_iE, gradient_rE;
};

// Image 0 stands twice on rank 0 and once on rank 1, image 1 on rank 2, which encodes nothing.
std::shared_ptr<const sp::ImagePlan> plan_of(int64_t rank) {
  const std::vector<sp::ImageShape> images{{2, 5}, {3, 4}};
  const std::vector<sp::ImageRow> rows{{0, 0, 0, 0}, {0, 1, 0, 1}, {0, 4, 0, 0}, {1, 2, 0, 0},
                                       {2, 1, 1, 0}, {2, 2, 1, 1}, {2, 3, 1, 2}};
  return std::make_shared<const sp::ImagePlan>(sp::plan_images(images, rows, 3, rank));
}

RowsAndGradient exchanged(const sp::Mesh& mesh, const std::shared_ptr<sp::Communicator>& group,
                          const at::Tensor& encoded_rE, const at::Tensor& weight_iE) {
  const auto exchange =
      std::make_shared<const sp::RowExchange>(plan_of(mesh.sp_rank()), group, encoded_rE.device());
  const at::Tensor leaf = encoded_rE.detach().requires_grad_();
  const at::Tensor rows_iE = sp::exchange_rows(leaf, exchange);
  (rows_iE * weight_iE).sum().backward();
  return {rows_iE.detach(), leaf.grad()};
}

TEST_CASE("rows of images go between devices with the CPU's bits, and no host waits for them") {
  Scope scope;
  run_standin_ranks({1, 3, 1}, [](const sp::Mesh& mesh, const sp::ProcessGroups& groups,
                                  c10::Device where) {
    const auto plan = plan_of(mesh.sp_rank());
    const auto rank = static_cast<double>(mesh.rank());
    const at::Tensor encoded = at::arange(4 * plan->encoded_rows, at::kFloat).view({-1, 4}) / 7;
    const auto tokens = static_cast<int64_t>(plan->place_rows.size());
    const at::Tensor weight = at::arange(4 * tokens, at::kFloat).view({-1, 4}) / 3 + rank;
    const RowsAndGradient here = exchanged(mesh, groups.control(sp::axes::kSp), encoded, weight);
    const at::Tensor encoded_there = encoded.to(where), weight_there = weight.to(where);
    RowsAndGradient there;
    {
      const NoHostWaits none(where.index(), "rows of images");
      there = exchanged(mesh, groups.tensors(sp::axes::kSp), encoded_there, weight_there);
    }
    const auto lock = test::assertion_lock();
    CAPTURE(mesh.rank());
    CHECK(at::equal(there.rows_iE.cpu(), here.rows_iE));
    CHECK(at::equal(there.gradient_rE.cpu(), here.gradient_rE));
  });
  scope.finish();
  CHECK(scope.text() == "");
}

}  // namespace
}  // namespace ringside::standin
