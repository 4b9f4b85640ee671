// Guards: a critic whose values or updates depend on how tokens lie over the ranks, that forgets
// over a restart, or learns what is outside its clip. Oracle: one process in fp64.
#include "rl/step/critic.h"

#include <cmath>
#include <limits>

#include "engine/io/hf_directory.h"
#include "rl/checkpoint/checkpoint_reader.h"
#include "rl/data/training_batch.h"
#include "tests/support/catch.h"
#include "tests/support/checkpoints.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

using namespace ringside;
using ringside::test::max_abs_diff;

namespace {

using ringside::test::tiny_config;

// A directory with the tiny language model that critics start from.
struct ModelDirectory {
  explicit ModelDirectory(uint64_t seed = 3) {
    engine::save_decoder(test::random_decoder(tiny_config(), at::kDouble, seed), dir.path(),
                         at::kDouble);
  }
  rl::Config config(rl::DType dtype = rl::DType::kFloat64) const {
    rl::Config config;
    config.model.path = dir.path().string();
    config.model.dtype = dtype;
    return config;
  }
  test::TemporaryDirectory dir;
};

// Starts the head away from zero: a zero head hides the trunk.
void fill_head(rl::Critic& critic) {
  const at::Tensor flat = critic.model().head().flat().detach();
  flat.copy_(0.5 * at::sin(at::arange(flat.numel(), at::kDouble) + 1.0));
}

at::Tensor parameters(const rl::Critic& critic) {
  std::vector<at::Tensor> flats;
  for (const engine::ParamUnit* unit : critic.model().units()) {
    flats.push_back(unit->flat().detach());
  }
  return at::cat(flats).clone();
}

sp::Document make_document(int64_t length, int64_t first_target, int64_t d) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back(i < 3 ? i + 1
                        : (5 * i + i * i + d) %
                              tiny_config().vocab_size);  // a beginning that all share
  }
  return rl::make_scored_document(std::move(ids), first_target);
}

// Lengths from 2 to 31 tokens; the document of 9 carries no entry.
std::vector<sp::Document> ragged_documents() {
  std::vector<sp::Document> documents;
  for (const int64_t length : {4, 31, 17, 2, 12, 23, 6}) {
    documents.push_back(make_document(length, 1, length));
  }
  documents.push_back(make_document(9, 9, 9));
  return documents;
}

// Entry i of a document: a return between -1.5 and 1.5, an old value near it.
rl::StepColumns make_columns(const std::vector<sp::Document>& documents) {
  rl::StepColumns columns;
  for (const sp::Document& document : documents) {
    const auto d = static_cast<int64_t>(document.ids.size()) + 1;
    for (int64_t i = 0; i < document.entries.size(); ++i) {
      columns.returns.push_back(1.5 * std::sin(1.3 * static_cast<double>(i + 4 * d)));
      columns.value.push_back(columns.returns.back() * 0.4 +
                              0.3 * std::cos(static_cast<double>(i)));
    }
  }
  return columns;
}

int64_t count_entries(const std::vector<sp::Document>& documents) {
  int64_t entries = 0;
  for (const sp::Document& document : documents) {
    entries += document.entries.size();
  }
  return entries;
}

rl::LocalBatch collate(const std::vector<sp::Document>& documents, const sp::Mesh& mesh,
                       const sp::SequenceOptions& sequence = {}) {
  return {sp::collate(documents, mesh, {{4, 2, 8}, 32, sequence}), 0};
}

// The values of all entries in their own order, on every rank.
at::Tensor all_values(const rl::Critic& critic, const rl::LocalBatch& local, int64_t entries,
                      const sp::ProcessGroups& comms) {
  std::vector<double> values(entries, 0.0);
  rl::ColumnOutputs outputs;
  critic.runner().evaluate(rl::model_inputs(local, {}, at::kDouble),
                           [&](std::size_t i, const engine::HeadOutput& output) {
                             TORCH_CHECK(!output.values_n.requires_grad(),
                                         "scores are outside autograd");
                             outputs.add(values, local.micro_batches[i], 0, output.values_n);
                           });
  outputs.store();
  std::vector<double>* columns[] = {&values};
  rl::merge_columns(columns, *comms.control(sp::axes::kLoss));
  return at::tensor(values, at::kDouble);
}

// What three updates did, as columns to compare.
struct Training {
  at::Tensor values_before, metrics, weights, values_after;
  bool rank_without_entries = false;
};

Training train(const rl::Config& config, const std::vector<sp::Document>& documents,
               const sp::Mesh& mesh, const sp::SequenceOptions& sequence,
               const sp::ProcessGroups& comms) {
  rl::Critic critic(config, comms);
  fill_head(critic);
  const int64_t entries = count_entries(documents);
  const auto local = collate(documents, mesh, sequence);
  const auto columns = make_columns(documents);
  Training result;
  for (const sp::MicroBatch& batch : local.micro_batches) {
    result.rank_without_entries |= batch.num_entries() == 0;
  }
  result.values_before = all_values(critic, local, entries, comms);
  std::vector<double> metrics;
  for (int step = 0; step < 3; ++step) {
    const auto update = critic.update(local, columns, static_cast<double>(entries), 1e-2);
    TORCH_CHECK(update.figures["tokens"] == entries, update.figures["tokens"], " tokens of ",
                entries);
    for (const auto& [name, value] : rl::critic_metrics({update})) {
      metrics.push_back(value);
    }
  }
  result.metrics = at::tensor(metrics, at::kDouble);
  result.weights = parameters(critic);
  result.values_after = all_values(critic, local, entries, comms);
  return result;
}

void check_close(const at::Tensor& found, const at::Tensor& expected) {
  CHECK(found.sizes() == expected.sizes());
  const at::Tensor excess = (found - expected).abs() - (1e-12 + 1e-9 * expected.abs());
  CAPTURE(max_abs_diff(found, expected));
  CHECK(excess.max().item<double>() <= 0.0);
}

// Runs `body` as the only rank.
void run_alone(const std::function<void(const sp::Mesh&, const sp::ProcessGroups&)>& body) {
  test::run_ranks({1, 1, 1}, body);
}

}  // namespace

TEST_CASE(
    "values, losses, gradient norms and weights are the same at every layout, recomputed or not") {
  const ModelDirectory directory;
  const auto documents = ragged_documents();
  Training expected;
  run_alone([&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    expected = train(directory.config(), documents, mesh, {}, comms);
  });
  CHECK(expected.metrics[0].item<double>() > 0.1);  // critic/vf_loss
  CHECK(expected.metrics[1].item<double>() > 0.1);  // critic/vf_clipfrac
  CHECK(expected.metrics[7].item<double>() > 0.1);  // critic/grad_norm
  CHECK(max_abs_diff(expected.values_before, expected.values_after) > 0.01);
  const auto ring = [](sp::RingImpl impl) { return sp::SequenceOptions{{impl}}; };
  const auto p2p = ring(sp::RingImpl::kP2p), all_gather = ring(sp::RingImpl::kAllGather);
  sp::SequenceOptions copied_prefix, overlapped;
  copied_prefix.shared_prefix = false;
  overlapped.async_ulysses = true;
  const std::vector<std::pair<sp::MeshShape, sp::SequenceOptions>> layouts{
      {{1, 1, 1}, copied_prefix}, {{1, 1, 2}, {}},         {{1, 1, 4}, {}},
      {{1, 1, 2}, overlapped},    {{1, 2, 1}, p2p},        {{1, 4, 1}, p2p},
      {{1, 2, 1}, all_gather},    {{1, 4, 1}, all_gather}, {{1, 2, 2}, p2p},
      {{1, 2, 2}, all_gather},    {{2, 1, 1}, {}},         {{2, 1, 2}, copied_prefix}};
  bool rank_without_entries = false;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto& [shape, sequence] = layouts[i];
    CAPTURE(i, shape.dp_replicate, shape.ring, shape.ulysses);
    auto config = directory.config();
    config.model.recompute = i % 2 == 1 ? rl::Recompute::kFull : rl::Recompute::kNone;
    std::vector<Training> results(shape.world_size());
    test::run_ranks_in_memory(
        shape, [&, &sequence = sequence](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
          results[mesh.rank()] = train(config, documents, mesh, sequence, comms);
        });
    for (const Training& result : results) {
      check_close(result.values_before, expected.values_before);
      check_close(result.metrics, expected.metrics);
      check_close(result.weights, expected.weights);
      check_close(result.values_after, expected.values_after);
      rank_without_entries |= result.rank_without_entries;
    }
  }
  CHECK(rank_without_entries);
}

TEST_CASE("values outside the clip that move towards the return earn no gradient and stay") {
  const ModelDirectory directory;
  auto documents = ragged_documents();
  const auto update = [&](double old_value) {
    rl::StepColumns columns;  // the head starts at zero: every value is 0, and the return is 1
    columns.value.assign(count_entries(documents), old_value);
    columns.returns.assign(count_entries(documents), 1.0);
    std::pair<rl::CriticUpdate, double> result;
    run_alone([&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
      rl::Critic critic(directory.config(), comms);
      const auto before = parameters(critic);
      result.first =
          critic.update(collate(documents, mesh), columns, count_entries(documents), 1e-2);
      result.second = max_abs_diff(parameters(critic), before);
    });
    return result;
  };
  const auto [outside, moved] = update(-1.0);
  CHECK(outside.grad_norm == 0.0);
  CHECK(outside.figures["clipped"] == 1.0);
  CHECK(outside.figures["loss"] == Approx(0.5 * 1.5 * 1.5));
  CHECK(moved == 0.0);
  const auto [inside, moved_inside] = update(0.0);
  CHECK(inside.figures["clipped"] == 0.0);
  CHECK(inside.figures["loss"] == Approx(0.5));
  CHECK(moved_inside > 0.0);
}

TEST_CASE("a critic learns returns that are a function of the token") {
  const ModelDirectory directory;
  auto config = directory.config(rl::DType::kFloat32);
  config.algorithm.critic.value_clip = 0.0;
  auto documents = ragged_documents();
  rl::StepColumns columns = make_columns(documents);
  columns.returns.clear();
  for (const sp::Document& document : documents) {
    for (const int64_t source : document.entries.source) {
      columns.returns.push_back(std::sin(static_cast<double>(document.ids[source])));
    }
  }
  run_alone([&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    rl::Critic critic(config, comms);
    const auto local = collate(documents, mesh);
    const auto loss_tokens = static_cast<double>(count_entries(documents));
    const double first = critic.update(local, columns, loss_tokens, 1e-2).figures["loss"];
    double last = first;
    for (int step = 0; step < 60; ++step) {
      last = critic.update(local, columns, loss_tokens, 1e-2).figures["loss"];
    }
    CHECK(first > 0.1);
    CHECK(last < 0.02 * first);
  });
}

TEST_CASE("a saved critic goes on to the bit") {
  const ModelDirectory directory, other(8);
  const auto dtype = GENERATE(rl::DType::kFloat32, rl::DType::kBFloat16, rl::DType::kFloat64);
  const test::TemporaryDirectory target;
  const auto documents = ragged_documents();
  run_alone([&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto local = collate(documents, mesh);
    const auto columns = make_columns(documents);
    const auto loss_tokens = static_cast<double>(count_entries(documents));
    rl::Critic critic(directory.config(dtype), comms);
    critic.update(local, columns, loss_tokens, 1e-2);
    critic.update(local, columns, loss_tokens, 1e-2);
    rl::CheckpointManifest manifest;
    manifest.parts = {
        rl::write_part(target.path(), {}, test::named_slices("critic", critic.runner()))};
    rl::write_manifest(target.path(), manifest);
    rl::Critic restored(other.config(dtype), comms);
    CHECK_FALSE(at::equal(parameters(critic), parameters(restored)));
    rl::CheckpointReader(target.path()).fill("critic", restored.runner().state_slices());
    restored.runner().set_step_count(critic.runner().step_count());
    CHECK(at::equal(parameters(critic), parameters(restored)));
    critic.update(local, columns, loss_tokens, 1e-2);
    restored.update(local, columns, loss_tokens, 1e-2);
    CHECK(at::equal(parameters(critic), parameters(restored)));
    std::filesystem::create_directories(target.path() / "critic");
    engine::export_weights(std::as_const(critic).model(),
                           engine::value_model_files(target.path() / "critic"));
    auto config = directory.config(dtype);
    config.algorithm.critic.model_path = (target.path() / "critic").string();
    CHECK(at::equal(parameters(critic), parameters(rl::Critic(config, comms))));
  });
}

TEST_CASE(
    "a critic starts from its own directory, else from the policy's or at random as model.init "
    "says") {
  const ModelDirectory policy(3), own(8);
  const auto from = [](rl::Config config, const std::string& path, rl::ModelInit init) {
    config.algorithm.critic.model_path = path;
    config.model.init = init;
    return parameters(rl::Critic(config, sp::single_rank_groups()));
  };
  const auto loaded = from(policy.config(), "", rl::ModelInit::kPretrained);
  const auto from_own = from(policy.config(), own.dir.path().string(), rl::ModelInit::kPretrained);
  CHECK(at::equal(loaded,
                  from(own.config(), policy.dir.path().string(), rl::ModelInit::kPretrained)));
  CHECK(at::equal(from_own, from(own.config(), "", rl::ModelInit::kPretrained)));
  CHECK(
      at::equal(from_own, from(policy.config(), own.dir.path().string(), rl::ModelInit::kRandom)));
  CHECK_FALSE(at::equal(from_own, loaded));
  const auto random = from(policy.config(), "", rl::ModelInit::kRandom);
  CHECK_FALSE(at::equal(random, loaded));
  CHECK(at::equal(random, from(own.config(), "", rl::ModelInit::kRandom)));
}

TEST_CASE(
    "a gradient that is not finite leaves the critic as it was; no loss token means no gradient") {
  const ModelDirectory directory;
  auto documents = ragged_documents();
  run_alone([&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    rl::Critic critic(directory.config(), comms);
    const auto before = parameters(critic);
    const std::vector<sp::Document> silent{make_document(9, 9, 9)};
    const auto update = critic.update(collate(silent, mesh), make_columns(silent), 0.0, 1e-2);
    CHECK(update.grad_norm == 0.0);
    CHECK(update.figures["loss"] == 0.0);
    CHECK(at::equal(parameters(critic), before));
    CHECK_THROWS_WITH(critic.update(collate(silent, mesh), make_columns(silent), -1.0, 1e-2),
                      Catch::Contains("loss_tokens"));
    auto columns = make_columns(documents);
    columns.returns[0] = std::numeric_limits<double>::quiet_NaN();
    CHECK_THROWS_WITH(
        critic.update(collate(documents, mesh), columns, count_entries(documents), 1e-2),
        Catch::Contains("gradient norm is nan"));
    CHECK(at::equal(parameters(critic), before));
  });
}

TEST_CASE("critic metrics: names, means over updates, statistics over all their tokens") {
  const auto values = at::tensor({1.0, 3.0}, at::kDouble),
             returns = at::tensor({2.0, 3.0}, at::kDouble);
  const auto figures = [](double loss, double tokens, double clipped) {
    rl::StepFigures of_step;
    of_step.set("loss", rl::FigureRule::kSum, loss);
    of_step.set("tokens", rl::FigureRule::kSum, tokens);
    of_step.set("clipped", rl::FigureRule::kMean, clipped);
    return of_step;
  };
  rl::CriticUpdate a{figures(0.5, 2, 1), rl::ValueStatistics::of(values, returns), 2.0, 1e-3};
  rl::CriticUpdate b{figures(0.1, 1, 0),
                     rl::ValueStatistics::of(values.narrow(0, 0, 1) - 2, returns.narrow(0, 0, 1)),
                     4.0, 1e-4};
  const rl::Metrics expected{
      {"critic/vf_loss", 0.3},           {"critic/vf_clipfrac", 1.0 / 3},
      {"critic/vf_explained_var", -6.0},  // residuals 1, 0, 3; returns 2, 3, 2
      {"critic/values/mean", 1.0},       {"critic/values/min", -1.0},
      {"critic/values/max", 3.0},        {"critic/returns/mean", 7.0 / 3},
      {"critic/grad_norm", 3.0},         {"critic/lr", 1e-4}};
  const auto metrics = rl::critic_metrics({a, b});
  REQUIRE(metrics.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(metrics[i].first == expected[i].first);
    CHECK(metrics[i].second == Approx(expected[i].second));
  }
  CHECK(rl::critic_metrics({rl::CriticUpdate{}})[4].second ==
        0.0);  // no token: no infinite minimum
  CHECK_THROWS_AS(rl::critic_metrics({}), std::invalid_argument);
}
