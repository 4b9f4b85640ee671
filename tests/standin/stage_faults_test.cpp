// Guards: faults of a pipeline that a model's stages show: runs out of order, weights that change
// during a pass, messages of other micro-batches or used too early, ranks with different plans; a
// pass that waits on the host.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "engine/device/side_stream.h"
#include "engine/models/pipeline.h"
#include "engine/models/random_weights.h"
#include "engine/optim/adamw.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/model_runner.h"
#include "engine/runner/pipeline_run.h"
#include "engine/runner/stage_passes.h"
#include "rl/data/training_batch.h"
#include "rl/setup/sharding.h"
#include "sp/batch/collator.h"
#include "tests/standin/planted_line.h"
#include "tests/standin/streams.h"
#include "tests/support/catch.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/tiny_model.h"

namespace ringside::standin {
namespace {

using sp::PassKind;
using sp::PipelineSchedule;

constexpr int64_t kInputs = 4;
constexpr int64_t kLast = kInputs - 1;  // behind whose backward in the first stage nobody waits
constexpr int64_t kTokens = 10;         // of each of them

// A model's stages on two ranks, or on two shards.
struct Setting {
  at::ScalarType dtype = at::kFloat;
  engine::Recompute recompute = engine::Recompute::kNone;
  int64_t shard = 1;  // ranks of a stage, by ZeRO 3
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t stages_per_rank = 1;

  sp::PipelineShape shape() const {
    const bool vee = schedule == PipelineSchedule::kZeroBubbleV;
    return {2, stages_per_rank, vee ? sp::StageOrder::kVee : sp::StageOrder::kLoop};
  }
  rl::ParallelConfig parallel() const {
    rl::ParallelConfig config;
    config.data_parallel_shard_size = shard;
    config.pipeline_parallel_size = 2;
    config.stages_per_rank = stages_per_rank;
    return config;
  }
};

using Line = std::shared_ptr<sp::Communicator>;
using Events = std::vector<sp::PipelineEvent>;
using Units = std::vector<engine::ParamUnit*>;

// What differs from the right program.
struct Planted {
  std::function<Line(const Line&)> line = [](const Line& line) { return line; };
  std::function<void(Events&)> events = [](Events&) {};
  std::function<void(const sp::StageRun&, const Units&)> before = [](const auto&, const auto&) {};
};

// Runs of stages, each after what is planted before it.
class PlantedWork final : public engine::StageWork {
 public:
  PlantedWork(engine::StageWork& work, std::function<void(const sp::StageRun&)> before)
      : work_(work), before_(std::move(before)) {}

  at::Tensor message(int64_t input) override { return work_.message(input); }
  at::Tensor forward(int64_t stage, int64_t input, const at::Tensor& received) override {
    before_({PassKind::kForward, stage, input});
    return work_.forward(stage, input, received);
  }
  at::Tensor backward(int64_t stage, int64_t input, const at::Tensor& gradient) override {
    before_({PassKind::kBackward, stage, input});
    return work_.backward(stage, input, gradient);
  }
  at::Tensor input_gradient(int64_t stage, int64_t input, const at::Tensor& gradient) override {
    before_({PassKind::kInputGradient, stage, input});
    return work_.input_gradient(stage, input, gradient);
  }
  void weight_gradient(int64_t stage, int64_t input) override {
    before_({PassKind::kWeightGradient, stage, input});
    work_.weight_gradient(stage, input);
  }

 private:
  engine::StageWork& work_;
  std::function<void(const sp::StageRun&)> before_;
};

engine::ModelConfig staged_model() {
  engine::ModelConfig config = test::tiny_config();
  config.num_hidden_layers = 4;
  config.tie_word_embeddings = false;
  return config;
}

engine::ComputeContext context_of(const Setting& setting, const sp::ProcessGroups& groups,
                                  c10::Device device) {
  engine::ComputeContext context(setting.dtype, device);
  context.sharding = rl::make_sharding(setting.parallel(), groups);
  context.pipeline = std::make_shared<const engine::Pipeline>(
      engine::Pipeline{setting.shape(), groups.tensors(sp::axes::kPipeline), setting.schedule});
  return context;
}

std::unique_ptr<engine::LanguageModel> model_of(const Setting& setting,
                                                const engine::ComputeContext& context) {
  std::vector<std::unique_ptr<engine::Decoder>> stages;
  for (const engine::Stage& stage : engine::own_stages(staged_model(), context.pipeline.get())) {
    engine::RandomWeights draw(staged_model(), 3, 0.3);
    stages.push_back(std::make_unique<engine::Decoder>(staged_model(), stage, context,
                                                       engine::WeightStorage{}, std::ref(draw)));
    stages.back()->set_activation_options({.recompute = setting.recompute});
  }
  return std::make_unique<engine::LanguageModel>(std::move(stages));
}

// Micro-batches of equal shape and different tokens, one document on each rank of a stage.
std::vector<sp::MicroBatch> batches_of(const sp::Mesh& mesh) {
  std::vector<sp::Document> all;
  for (int64_t d = 0; d < kInputs * mesh.shape().dp_shard; ++d) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < kTokens; ++i) {
      ids.push_back((7 * i + 3 * d) % 19);
    }
    all.push_back(rl::make_scored_document(std::move(ids), 2));
  }
  auto batches = sp::collate(all, mesh, engine::collator_options(staged_model(), kTokens, {}));
  TORCH_CHECK(std::ssize(batches) == kInputs, batches.size(), " micro-batches");
  return batches;
}

at::Tensor loss_of(const engine::HeadOutput& output, const engine::Columns&) {
  return -output.logprobs_n.sum();
}

// The plan, with other events on this rank.
sp::PipelinePlan plan_of(const Setting& setting, int64_t rank, const Planted& planted) {
  const sp::PipelinePlan plan =
      engine::pipeline_plan(setting.shape(), setting.schedule, 0, kInputs);
  std::vector<sp::PipelinePlan::RankPart> parts;
  for (int64_t r = 0; r < 2; ++r) {
    Events events(plan.events(r).begin(), plan.events(r).end());
    if (r == rank) {
      planted.events(events);
    }
    parts.push_back({std::move(events), plan.most_live(r), 1});
  }
  return {{}, std::move(parts), 1};
}

std::vector<engine::ModelInput> inputs_of(const std::vector<sp::MicroBatch>& batches) {
  std::vector<engine::ModelInput> inputs;
  for (const sp::MicroBatch& batch : batches) {
    inputs.push_back({&batch, at::ones({batch.num_entries()})});
  }
  return inputs;
}

// Of one stage, whose rank of a shard is 0.
struct StageOutcome {
  std::string error;
  at::Tensor gradients;  // of all units, one behind the other
};

// A training pass of this rank.
at::Tensor pass_of(const Setting& setting, const Planted& planted, const sp::Mesh& mesh,
                   const sp::ProcessGroups& groups, c10::Device device) {
  const engine::ComputeContext context = context_of(setting, groups, device);
  const auto model = model_of(setting, context);
  const Units units = model->units();
  const std::vector<sp::MicroBatch> batches = batches_of(mesh);
  const std::vector<engine::ModelInput> inputs = inputs_of(batches);
  engine::GradientSync sync(units, groups.tensors(sp::axes::kLoss), context);
  engine::LiveInputs live(*model, inputs, groups, engine::make_side_stream(device));
  const engine::LossFunction loss = loss_of;
  const engine::TrainingParts parts{loss, sync, {}, false, 0.0, nullptr, nullptr, {}, units};
  engine::TrainingOutcome outcome;
  outcome.work.expert_rows = engine::no_expert_load(model->trunk());
  engine::TrainingPass pass(live, parts, /*is_whole=*/false, outcome);
  PlantedWork work(pass, [&](const sp::StageRun& run) { planted.before(run, units); });
  const Line line = planted.line(context.pipeline->line);
  {
    const NoHostWaits none(device.index(), "a training pass of stages");
    engine::run_pipeline(plan_of(setting, line->rank(), planted), setting.shape(), *line, work);
  }
  sync.finish();
  std::vector<at::Tensor> gradients;
  for (const engine::ParamUnit* unit : units) {
    gradients.push_back(unit->grad().cpu());
  }
  return at::cat(gradients);
}

// Of both stages. The ranks of stage `faulty` run what is planted.
std::vector<StageOutcome> run(const Setting& setting, int64_t faulty, const Planted& planted) {
  std::vector<StageOutcome> outcomes(2);
  const rl::ParallelConfig parallel = setting.parallel();
  run_standin_ranks_in_memory(
      rl::mesh_shape(parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups, c10::Device device) {
        const int64_t stage = mesh.rank() / setting.shard;
        StageOutcome own;
        own.error = error_of([&] {
          own.gradients =
              pass_of(setting, stage == faulty ? planted : Planted{}, mesh, groups, device);
        });
        if (mesh.rank() % setting.shard == 0) {
          outcomes[stage] = std::move(own);
        }
      },
      std::chrono::milliseconds(1500), rl::sharding_axes(parallel));
  return outcomes;
}

bool names(const std::string& error, const std::string& part) {
  return error.find(part) != std::string::npos;
}

// Exchanges the runs of two kinds of the last input.
void swap_last(Events& events, PassKind a, PassKind b) {
  const auto last = [&](PassKind kind) {
    return std::ranges::find_if(events, [kind](const sp::PipelineEvent& event) {
      const auto* run = std::get_if<sp::StageRun>(&event);
      return run != nullptr && run->kind == kind && run->input == kLast;
    });
  };
  std::iter_swap(last(a), last(b));
}

TEST_CASE("a training pass of stages waits for no device, by every schedule") {
  using enum PipelineSchedule;
  for (const Setting& setting :
       std::vector<Setting>{{.schedule = kGpipe},
                            {.schedule = kOneForwardOneBackward},
                            {.recompute = engine::Recompute::kFull, .shard = 2},
                            {.schedule = kInterleaved, .stages_per_rank = 2},
                            {.schedule = kZeroBubble},
                            {.shard = 2, .schedule = kZeroBubble},
                            {.schedule = kZeroBubbleV, .stages_per_rank = 2}}) {
    CAPTURE(static_cast<int>(setting.schedule), setting.shard);
    const Scope scope;
    for (const StageOutcome& rank : run(setting, 0, {})) {
      CHECK(rank.error == "");
      CHECK(rank.gradients.abs().max().item<float>() > 1e-2);
    }
    CHECK(scope.text() == "");
  }
}

TEST_CASE("planted: a stage that waits for its device is reported") {
  const Scope scope;
  run({}, 0, {.before = [](const sp::StageRun& run, const Units& units) {
        if (run.kind == PassKind::kBackward && run.input == kLast) {
          units[0]->flat().sum().item<float>();
        }
      }});
  const std::vector<Report> reports = scope.reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports.front().fault == Fault::kForbiddenHostSync);
  CHECK(names(reports.front().text, "a training pass of stages"));
}

TEST_CASE("planted: weights' gradients before the gradient of their stage's input are refused") {
  const Setting setting{.schedule = PipelineSchedule::kZeroBubble};
  for (const int64_t faulty : {0, 1}) {
    const Scope scope;
    const auto outcomes =
        run(setting, faulty, {.events = [](Events& events) {
              swap_last(events, PassKind::kWeightGradient, PassKind::kInputGradient);
            }});
    CAPTURE(outcomes[0].error, outcomes[1].error);
    CHECK(names(outcomes[faulty].error, "weights' gradients of stage " + std::to_string(faulty) +
                                            " and input 3 before the gradient of its input"));
  }
}

// The text of the stage that changes its weights before a run of the last input.
std::string error_of_change(const Setting& setting, int64_t stage, PassKind before,
                            const std::function<void(const Units&)>& change) {
  const Scope scope;
  const auto outcomes =
      run(setting, stage, {.before = [&](const sp::StageRun& run, const Units& units) {
            if (run.kind == before && run.input == kLast) {
              change(units);
            }
          }});
  return outcomes[stage].error;
}

TEST_CASE("planted: a weight that changes between a stage's forward and its backward is named") {
  using enum PassKind;
  const auto change = [](const Units& units) {
    const at::NoGradGuard no_grad;
    units[1]->flat().mul_(1.5);
    units[1]->changed();
  };
  const engine::Recompute full = engine::Recompute::kFull;
  const PipelineSchedule split = PipelineSchedule::kZeroBubble;
  for (const auto& [setting, stage, before] : std::vector<std::tuple<Setting, int64_t, PassKind>>{
           {{}, 0, kBackward},
           {{}, 1, kBackward},
           {{.dtype = at::kBFloat16}, 0, kBackward},
           {{.recompute = full}, 0, kBackward},
           {{.dtype = at::kBFloat16, .recompute = full}, 0, kBackward},
           {{.shard = 2}, 0, kBackward},
           {{.recompute = full, .shard = 2}, 0, kBackward},
           {{.schedule = split}, 0, kInputGradient},
           {{.dtype = at::kBFloat16, .schedule = split}, 0, kInputGradient},
           {{.dtype = at::kBFloat16, .schedule = split}, 0, kWeightGradient}}) {
    CAPTURE(setting.dtype, static_cast<int>(setting.recompute), setting.shard, stage,
            static_cast<int>(before));
    const std::string error = error_of_change(setting, stage, before, change);
    CAPTURE(error);
    CHECK(names(error, "weights of unit "));
    CHECK(names(error, "the backward of stage " + std::to_string(stage) + " and input 3"));
  }
}

TEST_CASE("planted: an optimizer's step between a stage's forward and its backward is named") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t shard : {1, 2}) {
      CAPTURE(dtype, shard);
      const std::string error =
          error_of_change({.dtype = dtype, .shard = shard}, 0, PassKind::kBackward,
                          [](const Units& units) { engine::AdamW(units, {}).step(1e-2); });
      CAPTURE(error);
      CHECK(names(error, "weights of unit "));
    }
  }
}

TEST_CASE("planted: hidden states or a gradient of another input are told by other gradients") {
  // Only the numbers tell: they are not those of the whole model, with which tests/rl/pipeline_test
  // compares them.
  const Planted repeating{
      .line = [](const Line& line) { return std::make_shared<RepeatingLine>(line); }};
  const auto right = [] {
    const Scope scope;
    return run({}, 0, {});
  }();
  for (const int64_t faulty : {0, 1}) {
    CAPTURE(faulty);
    const Scope scope;
    const auto wrong = run({}, faulty, repeating);
    for (const StageOutcome& stage : wrong) {
      CHECK(stage.error == "");
    }
    CHECK(scope.text() == "");
    // Wrong hidden states change both stages' gradients, a wrong gradient those of its receiver.
    CHECK(!wrong[0].gradients.equal(right[0].gradients));
    CHECK(wrong[1].gradients.equal(right[1].gradients) == (faulty == 1));
  }
}

TEST_CASE("planted: a stage that uses a message without waiting for its event is reported") {
  const Planted unwaited{
      .line = [](const Line& line) { return std::make_shared<UnwaitedLine>(line); }};
  for (const int64_t faulty : {0, 1}) {
    CAPTURE(faulty);
    const Scope scope;
    for (const StageOutcome& stage : run({}, faulty, unwaited)) {
      CHECK(stage.error == "");
    }
    const std::vector<Report> reports = scope.reports();
    REQUIRE(!reports.empty());
    CHECK(reports.front().fault == Fault::kUnorderedRead);
    CHECK(names(reports.front().text, "receive ["));
  }
}

TEST_CASE("planted: ranks with different plans are refused before the first message") {
  const Setting setting;
  std::vector<std::string> errors(2);
  const rl::ParallelConfig parallel = setting.parallel();
  const Scope scope;
  run_standin_ranks_in_memory(
      rl::mesh_shape(parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups, c10::Device device) {
        engine::ComputeContext context = context_of(setting, groups, device);
        auto pipeline = std::make_shared<engine::Pipeline>(*context.pipeline);
        pipeline->warm_up = mesh.rank();
        context.pipeline = std::move(pipeline);
        engine::ModelRunner runner(model_of(setting, context), groups, engine::AdamWOptions{});
        const std::vector<sp::MicroBatch> batches = batches_of(mesh);
        const std::vector<engine::ModelInput> inputs = inputs_of(batches);
        errors[mesh.rank()] = error_of([&] { runner.train(inputs, loss_of); });
        CHECK(context.pipeline->line->sent_bytes().empty());
      },
      std::chrono::milliseconds(1500), rl::sharding_axes(parallel));
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(names(error, "the plan of the pipeline"));
  }
  CHECK(scope.text() == "");
}

}  // namespace
}  // namespace ringside::standin
