// Guards: an option that a method ignores in silence, a refusal after the first collective, shapes
// that do not fit the plan; a ring that waits for its keys and values before it computes.
#include <limits>

#include "tests/sp/attention_problem.h"
#include "tests/sp/functional_cases.h"
#include "tests/support/catch.h"

using namespace ringside;
using sp::RingImpl;

namespace {

const std::vector<std::pair<sp::MeshShape, RingImpl>> kMethods{
    {{1, 1, 1}, RingImpl::kP2p}, {{1, 1, 2}, RingImpl::kP2p},
    {{1, 2, 1}, RingImpl::kP2p}, {{1, 2, 1}, RingImpl::kAllGather},
    {{1, 2, 2}, RingImpl::kP2p}, {{1, 2, 2}, RingImpl::kAllGather}};

struct Option {
  const char* name;
  std::function<void(test::Problem&, sp::AttentionOptions&)> set;
  const char* refusal;  // nullptr = honoured
};

const std::vector<Option> kOptions{
    {"softmax scale", [](test::Problem& p, sp::AttentionOptions&) { p.scale = 1.9; }, nullptr},
    {"window", [](test::Problem& p, sp::AttentionOptions&) { p.window = 3; }, nullptr},
    {"sinks", [](test::Problem& p, sp::AttentionOptions&) { p.sinks = at::ones({4}, at::kDouble); },
     nullptr},
    {"dropout", [](test::Problem&, sp::AttentionOptions& o) { o.dropout = 0.1; },
     "dropout 0.1 cannot be honoured"},
    {"soft-cap", [](test::Problem&, sp::AttentionOptions& o) { o.logit_softcap = 30; },
     "soft-cap 30 cannot be honoured"},
};

}  // namespace

TEST_CASE("every option is honoured or refused by every method, before the first collective") {
  const test::Problem plain =
      test::make_problem(sp::SegmentForest({{-1, 9}, {0, 12}, {0, 7}}), {4, 2, 8});
  const at::Tensor unchanged = test::solve_densely(plain).out;
  for (const auto& [shape, ring_impl] : kMethods) {
    for (const Option& option : kOptions) {
      CAPTURE(option.name, shape.ring, shape.ulysses, static_cast<int>(ring_impl));
      test::Problem p = plain;
      sp::AttentionOptions refused;
      option.set(p, refused);
      if (option.refusal == nullptr) {
        const at::Tensor expected = test::solve_densely(p).out;
        CHECK(test::max_abs_diff(expected, unchanged) > 1e-3);  // the option matters here at all
        CHECK(test::max_abs_diff(test::solve_on_mesh(p, {ring_impl}, shape, at::kDouble).out,
                                 expected) < 1e-10);
        continue;
      }
      std::vector<std::string> errors(shape.world_size());
      std::vector<int64_t> bytes(shape.world_size(), 0);
      test::run_ranks(shape, [&, &mesh_shape = shape, &impl = ring_impl](
                                 const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        const sp::SequenceLayout layout(p.forest, mesh_shape.ring, mesh_shape.ulysses);
        const auto plan = std::make_shared<const sp::AttentionPlan>(
            sp::plan_attention(layout, p.heads, mesh.sp_rank(), {impl}));
        const auto index = at::tensor(layout.packed_indices(mesh.sp_rank()), at::kLong);
        try {
          sp::attention(p.q.index_select(0, index), p.k.index_select(0, index),
                        p.v.index_select(0, index),
                        {sp::cpu_kernels()->prepare(plan, p.q.options()),
                         comms.tensors(sp::axes::kUlysses), comms.tensors(sp::axes::kRing)},
                        refused);
        } catch (const c10::Error& error) {
          errors[mesh.rank()] = error.what();
        }
        for (const auto* comm :
             {comms.tensors(sp::axes::kUlysses).get(), comms.tensors(sp::axes::kRing).get()}) {
          for (const auto& [tag, count] : comm->sent_bytes()) {
            bytes[mesh.rank()] += count;
          }
        }
      });
      for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
        CHECK_THAT(errors[rank], Catch::Contains(option.refusal));
        CHECK(bytes[rank] == 0);
      }
    }
  }
}

TEST_CASE("shapes that do not fit the plan are refused before any collective") {
  const sp::SequenceLayout layout({4}, 1, 1);
  const auto plan =
      std::make_shared<const sp::AttentionPlan>(sp::plan_attention(layout, {4, 2, 8}, 0));
  const auto alone = sp::make_single_rank_communicator();
  const at::Tensor q = at::zeros({4, 4, 8}), kv = at::zeros({4, 2, 8});
  const sp::AttentionContext context{sp::cpu_kernels()->prepare(plan, q.options()), alone, alone};
  CHECK_THROWS_WITH(sp::attention(kv, kv, kv, context, {}), Catch::Contains("q has shape"));
  CHECK_THROWS_WITH(sp::attention(q, q, q, context, {}), Catch::Contains("k and v have shapes"));
  CHECK_THROWS_WITH(sp::attention(q, kv.to(at::kDouble), kv.to(at::kDouble), context, {}),
                    Catch::Contains("share a dtype"));
  CHECK_THROWS_WITH(sp::attention(q, kv, kv, context, {1.0, at::zeros({3})}),
                    Catch::Contains("expected [4]"));
  CHECK_THROWS_WITH(sp::attention(q, kv, kv, context, {1.0, at::zeros({4}, at::kMeta)}),
                    Catch::Contains("on meta, expected [4]"));
  CHECK_THROWS_WITH(
      sp::attention(q.to(at::kDouble), kv.to(at::kDouble), kv.to(at::kDouble), context, {}),
      Catch::Contains("expected Float"));
  CHECK_THROWS_WITH(sp::attention(q, kv.to(at::kMeta), kv, context, {}),
                    Catch::Contains("the plan was prepared for cpu"));
  CHECK_THROWS_WITH(sp::cpu_kernels()->prepare(plan, q.options().device(at::kMeta)),
                    Catch::Contains("tensors on meta"));
}

TEST_CASE("a rank without a live token, and a group without any, stay finite with zero gradients") {
  for (const auto& [shape, ring_impl] : kMethods) {
    for (const auto& lengths : std::vector<std::vector<int64_t>>{{1}, {0, 0}, {}}) {
      CAPTURE(lengths, shape.ring, shape.ulysses, static_cast<int>(ring_impl));
      const test::Problem p =
          test::make_problem(sp::SegmentForest::of_documents(lengths), {4, 2, 8});
      const auto solution = test::solve_on_mesh(p, {ring_impl}, shape, at::kDouble);
      for (const at::Tensor* x : {&solution.out, &solution.dq, &solution.dk, &solution.dv}) {
        CHECK(at::isfinite(*x).all().item<bool>());
      }
    }
  }
}

namespace {

// A prepared plan that writes "blocks" into the log of a communicator for each step that it runs.
class LoggingPlan final : public sp::PreparedPlan {
 public:
  LoggingPlan(std::shared_ptr<const sp::PreparedPlan> inner,
              std::shared_ptr<const sp::AttentionPlan> plan, const at::TensorOptions& wire,
              std::string& log)
      : PreparedPlan(std::move(plan), wire), inner_(std::move(inner)), log_(log) {
    upload_tables();
  }
  at::ScalarType compute_dtype() const override { return inner_->compute_dtype(); }
  void forward(const sp::RingStepCall& call, const at::Tensor& q_ShD, const at::Tensor& kv_m2cD,
               sp::PartialAttention& result) const override {
    log_ += "blocks ";
    inner_->forward(call, q_ShD, kv_m2cD, result);
  }
  at::Tensor backward(const sp::RingStepCall& call, const sp::QuerySide& side,
                      const at::Tensor& kv_m2cD, at::Tensor& dq_ShD) const override {
    log_ += "blocks ";
    return inner_->backward(call, side, kv_m2cD, dq_ShD);
  }

 private:
  std::shared_ptr<const sp::PreparedPlan> inner_;
  std::string& log_;
};

struct RingLog {
  std::string forward, backward;
};

// What rank 0 of a ring starts, computes and waits for in one pass each way.
RingLog log_of_ring(int64_t ring, const sp::PlanOptions& options) {
  const test::Problem p = test::make_problem(sp::SegmentForest::of_documents({48}), {4, 2, 8});
  RingLog found;
  test::run_ranks({1, ring, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const sp::SequenceLayout layout(p.forest, ring, 1, sp::Placement::kZigzag);
    const auto plan = std::make_shared<const sp::AttentionPlan>(
        sp::plan_attention(layout, p.heads, mesh.sp_rank(), options));
    const auto index = at::tensor(layout.packed_indices(mesh.sp_rank()), at::kLong);
    const auto log = std::make_shared<test::LoggingCommunicator>(comms.tensors(sp::axes::kRing));
    const auto prepared = std::make_shared<const LoggingPlan>(
        sp::cpu_kernels()->prepare(plan, p.q.options()), plan, p.q.options(), log->log());
    const at::Tensor q = p.q.index_select(0, index).requires_grad_();
    const at::Tensor out =
        sp::attention(q, p.k.index_select(0, index), p.v.index_select(0, index),
                      {prepared, comms.tensors(sp::axes::kUlysses), log}, {p.scale, {}});
    const std::string forward = log->take();
    out.sum().backward();
    if (mesh.rank() == 0) {
      found = {forward, log->take()};
    }
  });
  return found;
}

}  // namespace

TEST_CASE("p2p: the next keys and values travel while the blocks of a step are computed") {
  const RingLog found = log_of_ring(3, {RingImpl::kP2p});
  CHECK(found.forward == "start0 blocks wait0 start1 blocks wait1 blocks ");
  // Gradients of a step travel while the next one is computed.
  CHECK(found.backward ==
        "start2 blocks wait2 start3 blocks start4 wait3 blocks wait4 start5 wait5 ");
}

TEST_CASE("all-gather: the next heads travel while the blocks of a chunk are computed") {
  const RingLog found = log_of_ring(2, {RingImpl::kAllGather, /*heads_k_stride=*/1});
  CHECK(found.forward == "start0 start1 wait0 blocks wait1 blocks ");
}
