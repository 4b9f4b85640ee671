// Guards several teachers by source, and teachers on servers: a completion that the teacher of
// another source judges, or a number that lands at another token, distils towards something else
// without any error. Oracle: the runs of one teacher alone, in fp64.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <httplib.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/generate/paged_cache.h"
#include "rl/config/load.h"
#include "rl/data/rollout_file.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/sharding.h"
#include "rl/step/teacher.h"
#include "rl/trainer/training_run.h"
#include "tests/rl/teacher_service.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::max_abs_diff;

const fs::path kModels = fs::path(RINGSIDE_GOLDENS) / "regression";
constexpr int64_t kGroupSize = 4;

std::string model(const std::string& name) { return (kModels / name).string(); }

using Words = std::vector<std::string>;

rl::Config config_of(const Words& more) {
  Words words{"model.path=" + model("policy"),
              "model.dtype=float64",
              "rollout.group_size=4",
              "rollout.prompts_per_step=4",
              "rollout.max_completion_tokens=12",
              "rollout.reward=worker"};
  words.insert(words.end(), more.begin(), more.end());
  return rl::load_config_or_throw({}, words);
}

std::vector<bridge::Rollout> recorded() {
  auto rollouts = rl::read_rollout_file(kModels / "plain.jsonl", kGroupSize);
  for (bridge::Rollout& rollout : rollouts) {
    rollout.temperature = 1.0F;
  }
  return rollouts;
}

// Groups take turns.
std::vector<int64_t> kinds_in_turn(const std::vector<bridge::Rollout>& rollouts) {
  std::vector<int64_t> kinds;
  for (const bridge::Rollout& rollout : rollouts) {
    kinds.push_back(rollout.group_id % 2);
  }
  return kinds;
}

// What a step gives: the teachers' log-probs, and the gradient of the loss of distributions.
struct Found {
  std::vector<double> teacher;
  std::vector<at::Tensor> gradients;  // of each rank
};

// kept: the kind whose tokens the loss counts; -1: all.
struct Step {
  rl::Config config;
  std::vector<int64_t> kinds = {};
  int64_t kept = -1;
};

// Sets the weights of tokens of other kinds than `kept` to 0.
void keep_kind(rl::StepColumns& columns, int64_t kept) {
  const auto kinds = kinds_in_turn(recorded());
  for (std::size_t sample = 0; sample < kinds.size(); ++sample) {
    for (int64_t t = columns.begin[sample]; t < columns.begin[sample + 1]; ++t) {
      columns.weight[t] = kept < 0 || kinds[sample] == kept ? columns.weight[t] : 0.0;
    }
  }
}

void check_one_kind(const sp::MicroBatch& batch, const rl::MiniBatch& of) {
  std::set<int64_t> kinds{batch.kind};
  const at::Tensor samples = batch.sample_n;
  for (int64_t n = 0; n < samples.numel(); ++n) {
    kinds.insert(of.documents.at(samples[n].item<int64_t>()).kind);
  }
  TORCH_CHECK(kinds.size() == 1, "a micro-batch of several kinds");
}

// Collective.
void run_step(const Step& step, const fs::path& dir, const sp::Mesh& mesh,
              const sp::ProcessGroups& comms, Found& found) {
  rl::TrainingRun run({step.config, dir, 1, {}}, mesh, comms);
  rl::PolicyTraining& policy = run.policy();
  const rl::Teachers teachers(step.config, policy.runner().model(), comms);
  rl::StepBatch batch = rl::make_step_batch(recorded(), step.config, {}, {}, step.kinds);
  keep_kind(batch.columns, step.kept);
  const rl::MiniBatch& mini_batch = batch.mini_batches.at(0);
  std::vector<rl::LocalBatch> local{{policy.collate(mini_batch.documents), 0}};
  for (const sp::MicroBatch& one : local[0].micro_batches) {
    check_one_kind(one, mini_batch);
  }
  std::vector<std::vector<rl::LocalBatch>> seen;
  for (const auto& teacher : teachers.models()) {
    seen.push_back({{policy.collate_for(teacher->runner().decoder(), mini_batch.documents), 0}});
  }
  rl::ServedColumns served;
  if (teachers.servers().any()) {
    served = teachers.servers().ask(batch.mini_batches, batch.columns, run.ranks().world(),
                                    run.ranks().round());
  }
  rl::ColumnOutputs outputs;
  teachers.score(batch.columns, seen, served, policy.runner().model().scores(), local, outputs);
  outputs.store();
  const auto inputs = rl::training_inputs(local[0], batch.columns, at::kDouble);
  std::vector<double>* const column = &batch.columns.teacher;
  rl::merge_columns(std::span(&column, 1), *comms.control(sp::axes::kEntries));
  if (mesh.rank() == 0) {
    found.teacher = batch.columns.teacher;
  }
  if (step.config.algorithm.distillation.over == rl::DistillationOver::kSampledToken) {
    return;
  }
  const engine::HeadedModel& student = std::as_const(policy.runner()).model();
  policy.runner().train(inputs, [&](const engine::HeadOutput& output, const engine::Columns& in) {
    rl::Figures figures;
    return teachers.distillation_loss(student, output, in, figures);
  });
  std::vector<at::Tensor> gradients;
  for (engine::ParamUnit* unit : policy.runner().model().units()) {
    gradients.push_back(unit->grad().flatten());
  }
  found.gradients.at(mesh.rank()) = at::cat(gradients);
}

Found found_of(const Step& step, const sp::MeshShape& shape) {
  const test::TemporaryDirectory dir;
  Found found;
  found.gradients.resize(shape.world_size());
  test::run_ranks_in_memory(
      shape,
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        run_step(step, dir.path(), mesh, comms, found);
      },
      rl::sharding_axes(step.config.parallel));
  return found;
}

struct Layout {
  std::string name;
  sp::MeshShape shape;
  Words words;
};

std::vector<Layout> layouts() {
  const std::string small = "train.tokens_per_micro_batch=40";
  return {{"one rank", {}, {small}},
          {"ring 2", {.ring = 2}, {small, "parallel.ringattn_parallel_size=2"}},
          {"2 shards", {.dp_shard = 2}, {small, "parallel.data_parallel_shard_size=2"}},
          {"tensor 2", {.tensor = 2}, {small, "parallel.tensor_parallel_size=2"}},
          {"pipeline 2", {.pipeline = 2}, {small, "parallel.pipeline_parallel_size=2"}}};
}

const std::vector<std::string> kOver{"sampled_token", "top_k", "vocabulary"};

Words over(const std::string& what) {
  Words words{"algorithm.distillation.over=" + what};
  if (what == "top_k") {
    words.push_back("algorithm.distillation.top_k=5");
  }
  return words;
}

Words joined(Words words, const std::vector<Words>& more) {
  for (const Words& some : more) {
    words.insert(words.end(), some.begin(), some.end());
  }
  return words;
}

// Throws unless each token of `both` has what the teacher of its kind says alone, and the gradient
// is the sum of theirs.
void check_sum(const Found& both, const std::vector<Found>& alone, double tolerance) {
  const rl::StepColumns columns = rl::make_step_batch(recorded(), config_of({})).columns;
  const auto kinds = kinds_in_turn(recorded());
  for (std::size_t sample = 0; sample < kinds.size(); ++sample) {
    for (int64_t t = columns.begin[sample]; t < columns.begin[sample + 1]; ++t) {
      CHECK(both.teacher.at(t) == Approx(alone[kinds[sample]].teacher.at(t)).epsilon(tolerance));
      CHECK(std::abs(alone[0].teacher.at(t) - alone[1].teacher.at(t)) > 1e-6);
    }
  }
  for (std::size_t rank = 0; rank < both.gradients.size(); ++rank) {
    if (both.gradients[rank].defined()) {
      const at::Tensor sum = alone[0].gradients[rank] + alone[1].gradients[rank];
      CHECK(max_abs_diff(both.gradients[rank], sum) < tolerance);
      CHECK(sum.abs().max().item<double>() > 1e-3);
    }
  }
}

}  // namespace

TEST_CASE("each completion is judged by the teacher of its source, at every layout") {
  const std::vector<std::string> places{model("teacher"), model("reference")};
  const Words both{"algorithm.distillation.teachers=math=" + places[0] + ", code=" + places[1]};
  for (const Layout& layout : layouts()) {
    for (const std::string& what : kOver) {
      DYNAMIC_SECTION(layout.name << ", " << what) {
        const Words common = joined(layout.words, {over(what)});
        std::vector<Found> alone;
        for (int64_t kind = 0; kind < 2; ++kind) {
          const Words one{"algorithm.distillation.teacher=" + places[kind]};
          alone.push_back(found_of({config_of(joined(common, {one})), {}, kind}, layout.shape));
        }
        check_sum(
            found_of({config_of(joined(common, {both})), kinds_in_turn(recorded())}, layout.shape),
            alone, 1e-10);
      }
    }
  }
}

TEST_CASE("a teacher on a server distils as the same model in the trainer, at every layout") {
  const std::string here = model("reference");
  const test::TeacherService service(here);
  const Words both{"algorithm.distillation.teachers=math=" + model("teacher") +
                   ", code=" + service.url()};
  const Words in_trainer{"algorithm.distillation.teachers=math=" + model("teacher") +
                         ", code=" + here};
  for (const Layout& layout : layouts()) {
    for (const std::string what : {"sampled_token", "top_k"}) {
      DYNAMIC_SECTION(layout.name << ", " << what) {
        const Words common = joined(layout.words, {over(what)});
        const auto kinds = kinds_in_turn(recorded());
        const Found found = found_of({config_of(joined(common, {both})), kinds}, layout.shape);
        const Found expected =
            found_of({config_of(joined(common, {in_trainer})), kinds}, layout.shape);
        REQUIRE(found.teacher.size() == expected.teacher.size());
        for (std::size_t t = 0; t < found.teacher.size(); ++t) {
          CHECK(found.teacher[t] == Approx(expected.teacher[t]).epsilon(1e-6));  // sent in fp32
        }
        for (std::size_t rank = 0; rank < found.gradients.size(); ++rank) {
          if (found.gradients[rank].defined()) {
            CHECK(max_abs_diff(found.gradients[rank], expected.gradients[rank]) < 1e-6);
            CHECK(found.gradients[rank].abs().max().item<double>() > 1e-3);
          }
        }
      }
    }
  }
}

TEST_CASE("a teacher on a server refuses rollouts of another temperature, on every rank") {
  const test::TeacherService service(model("reference"));
  const rl::Config config = config_of({"algorithm.distillation.teacher=" + service.url()});
  const rl::ServedTeachers servers(config, 32);
  auto rollouts = recorded();
  for (bridge::Rollout& rollout : rollouts) {
    rollout.temperature = 0.5F;
  }
  const rl::StepBatch batch = rl::make_step_batch(rollouts, config);
  CHECK_THROWS_WITH(servers.ask(batch.mini_batches, batch.columns,
                                *sp::make_single_rank_communicator(), std::chrono::seconds(1)),
                    Catch::Contains("temperature 0.5") && Catch::Contains("server"));
}
