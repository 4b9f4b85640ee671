// Guards: stages on the stand-in accelerator that compute other numbers than on the CPU, wait on
// the host inside a pass, or exchange messages in an order that stops under NCCL's rules.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/runner/pipeline_run.h"
#include "tests/standin/planted_line.h"
#include "tests/standin/sharded_outcome.h"
#include "tests/standin/two_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/tiny_model.h"

using namespace ringside;
using sp::PipelineSchedule;
using Layout = test::ShardLayout;
using Outcome = test::ShardOutcome;

namespace {

Outcome pipeline_outcome(const Layout& layout, at::ScalarType dtype, bool on_standin) {
  engine::ModelConfig model = test::tiny_config();
  model.num_hidden_layers = 4;
  model.tie_word_embeddings = layout.stages_per_rank == 1;  // two copies, too
  return test::train_sharded_on(on_standin, layout, model, dtype, 2);
}

}  // namespace

TEST_CASE("stages on the stand-in have the CPU's bits") {
  const std::vector<Layout> layouts{
      {.pipeline = 2},
      {.shard = 2,
       .stage = 3,
       .activations = {engine::Recompute::kFull},
       .pipeline = 2,
       .warm_up = 1},
      {.ring = 2, .pipeline = 2, .stages_per_rank = 2, .schedule = PipelineSchedule::kInterleaved},
      {.ulysses = 2,
       .activations = {engine::Recompute::kSelective, /*offload=*/true, 3},
       .pipeline = 2,
       .schedule = PipelineSchedule::kGpipe},
      {.shard = 2, .stage = 3, .pipeline = 2, .schedule = PipelineSchedule::kZeroBubble},
      {.pipeline = 2, .stages_per_rank = 2, .schedule = PipelineSchedule::kZeroBubbleV},
      {.tensor = 2, .pipeline = 2},
  };
  for (const Layout& layout : layouts) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(layout.name(), dtype);
      const Outcome expected = pipeline_outcome(layout, dtype, /*on_standin=*/false);
      const standin::Scope scope;
      const Outcome found = pipeline_outcome(layout, dtype, /*on_standin=*/true);
      CHECK(scope.text() == "");
      CHECK(found.losses == expected.losses);
      CHECK(found.norms == expected.norms);
      REQUIRE(found.weights.size() == expected.weights.size());
      for (std::size_t u = 0; u < found.weights.size(); ++u) {
        CHECK(found.weights[u].equal(expected.weights[u]));
      }
    }
  }
}

namespace {

constexpr int64_t kInputs = 4;

// Stages that add 1 forward and 2 backward, so that each message says which it is.
class Sums final : public engine::StageWork {
 public:
  Sums(const at::TensorOptions& options, bool equal_rows)
      : options_(options), equal_rows_(equal_rows) {}

  at::Tensor message(int64_t input) override { return at::empty({rows(input)}, options_); }
  at::Tensor forward(int64_t stage, int64_t input, const at::Tensor& received) override {
    if (stage == 1) {
      sums_.push_back(received + 1);
      return {};
    }
    return at::full({rows(input)}, static_cast<double>(100 * input), options_);
  }
  at::Tensor backward(int64_t stage, int64_t input, const at::Tensor& gradient) override {
    if (stage == 0) {
      sums_.push_back(gradient + 2);
      return {};
    }
    return at::full({rows(input)}, static_cast<double>(-100 * input), options_);
  }
  at::Tensor input_gradient(int64_t, int64_t, const at::Tensor&) override { return {}; }
  void weight_gradient(int64_t, int64_t) override {}

  // Whether the sums are those of the inputs in their order.
  bool right(int64_t stage) const {
    bool all = std::ssize(sums_) == kInputs;
    for (int64_t i = 0; all && i < kInputs; ++i) {
      const double expected = stage == 1 ? 100.0 * i + 1 : -100.0 * i + 2;
      all = sums_[i].cpu().equal(at::full({rows(i)}, expected, at::kFloat));
    }
    return all;
  }

 private:
  int64_t rows(int64_t input) const { return equal_rows_ ? 3 : 2 + input; }

  at::TensorOptions options_;
  bool equal_rows_;
  std::vector<at::Tensor> sums_;
};

sp::PipelinePlan two_stages() {
  sp::PipelineOptions options;
  options.shape.ranks = 2;
  options.inputs = kInputs;
  return sp::plan_pipeline(options);
}

using Events = std::vector<sp::PipelineEvent>;

// The plan with other events of rank 0.
sp::PipelinePlan with_fault(const std::function<void(Events&)>& fault) {
  const sp::PipelinePlan plan = two_stages();
  std::vector<sp::PipelinePlan::RankPart> parts;
  for (int64_t rank = 0; rank < 2; ++rank) {
    Events events(plan.events(rank).begin(), plan.events(rank).end());
    if (rank == 0) {
      fault(events);
    }
    parts.push_back({std::move(events), plan.most_live(rank), 1});
  }
  return {{}, std::move(parts), 1};
}

using Line = std::shared_ptr<sp::Communicator>;

// What differs from the right program.
struct Planted {
  sp::PipelinePlan plan = two_stages();  // of rank 0
  std::function<Line(const Line&, int rank)> line = [](const Line& line, int) { return line; };
  bool equal_rows = false;  // all messages have one size
};

// What the ranks throw.
std::array<std::string, 2> run(const Planted& planted, std::chrono::milliseconds deadline) {
  const sp::PipelineShape shape{2};
  return standin::run_two_ranks(
      [&](const standin::TwoRankContext& context) {
        const Line line = planted.line(sp::make_c10d_communicator(context.first), context.rank);
        Sums sums(standin::on_device(context.rank), planted.equal_rows);
        context.meet();
        {
          const standin::NoHostWaits none(context.rank, "a pass through the stages");
          engine::run_pipeline(context.rank == 0 ? planted.plan : two_stages(), shape, *line, sums);
        }
        TORCH_CHECK(sums.right(context.rank), "messages of other inputs arrived");
      },
      deadline);
}

std::size_t first_transfer(const Events& events, bool to_next, std::size_t from = 0) {
  for (std::size_t i = from; i < events.size(); ++i) {
    const auto* transfer = std::get_if<sp::StageTransfer>(&events[i]);
    if (transfer != nullptr && (transfer->to_stage > transfer->from_stage) == to_next) {
      return i;
    }
  }
  return events.size();
}

}  // namespace

TEST_CASE("a pass runs through two stages without a wait on the host") {
  const standin::Scope scope;
  for (const std::string& error : run({}, std::chrono::seconds(10))) {
    CHECK(error == "");
  }
  CHECK(scope.text() == "");
}

TEST_CASE("planted: two transfers swapped on one rank are told by their sizes") {
  standin::Scope scope;
  const auto errors = run({with_fault([](Events& events) {
                            const std::size_t a = first_transfer(events, /*to_next=*/false);
                            const std::size_t b = first_transfer(events, false, a + 1);
                            std::swap(std::get<sp::StageTransfer>(events[a]),
                                      std::get<sp::StageTransfer>(events[b]));
                          })},
                          std::chrono::milliseconds(500));
  CAPTURE(errors[0], errors[1]);
  CHECK((errors[0] + errors[1]).find("launched") != std::string::npos);
  CHECK(scope.text() != "");
}

TEST_CASE("planted: a transfer that one rank leaves out is a deadline that names what waits") {
  standin::Scope scope;
  const auto errors = run({with_fault([](Events& events) {
                            // The last gradient, and the run that needs it.
                            events.erase(events.end() - 2, events.end());
                          })},
                          std::chrono::milliseconds(500));
  CAPTURE(errors[0], errors[1]);
  CHECK((errors[0] + errors[1]).find("send of") != std::string::npos);
  CHECK(scope.text() != "");
}

TEST_CASE("planted: a receive posted where it is used stops under NCCL's rules") {
  standin::Scope scope;
  // Rank 0 sends its second input before it posts the first gradient, which rank 1 sends before it
  // takes that input.
  const auto errors =
      run({with_fault([](Events& events) {
            const std::size_t gradient = first_transfer(events, false);
            const auto late = events[gradient];
            events.erase(events.begin() + static_cast<std::ptrdiff_t>(gradient));
            // Behind the forward and the transfer of one more input.
            const std::size_t sent = first_transfer(events, true, gradient);
            events.insert(events.begin() + static_cast<std::ptrdiff_t>(sent) + 1, late);
          })},
          std::chrono::milliseconds(500));
  CAPTURE(errors[0], errors[1]);
  CHECK((errors[0] + errors[1]).find("no match within") != std::string::npos);
  CHECK(scope.text() != "");
}

TEST_CASE("planted: a message of another input, of equal size, is told by its values alone") {
  // Neither the transport nor the pass can know it: a message carries no name.
  for (const int faulty : {0, 1}) {
    CAPTURE(faulty);
    const standin::Scope scope;
    Planted planted{.equal_rows = true};
    planted.line = [faulty](const Line& line, int rank) -> Line {
      return rank == faulty ? std::make_shared<standin::RepeatingLine>(line) : line;
    };
    const auto errors = run(planted, std::chrono::seconds(10));
    CHECK(errors[faulty] == "");
    CHECK(errors[1 - faulty].find("messages of other inputs arrived") != std::string::npos);
    CHECK(scope.text() == "");
  }
}

TEST_CASE("planted: a message that is used without waiting for its event is reported") {
  for (const int faulty : {0, 1}) {
    CAPTURE(faulty);
    const standin::Scope scope;
    Planted planted;
    planted.line = [faulty](const Line& line, int rank) -> Line {
      return rank == faulty ? std::make_shared<standin::UnwaitedLine>(line) : line;
    };
    for (const std::string& error : run(planted, std::chrono::seconds(10))) {
      CHECK(error == "");
    }
    const std::vector<standin::Report> reports = scope.reports();
    REQUIRE(!reports.empty());
    CHECK(reports.front().fault == standin::Fault::kUnorderedRead);
    const std::string device = "standin:" + std::to_string(faulty);
    CAPTURE(reports.front().text);
    CHECK(reports.front().text.find("aten::add.out on " + device) != std::string::npos);
    CHECK(reports.front().text.find("receive [first] on " + device) != std::string::npos);
  }
}
