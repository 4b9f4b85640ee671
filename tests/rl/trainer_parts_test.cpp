// Guards: weights that arrive changed, in another order or half; checkpoints that lose optimizer
// state or precision; documents whose scores come back in another order.
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/io/hf_directory.h"
#include "engine/io/weight_files.h"
#include "engine/models/acting_values.h"
#include "engine/optim/adamw.h"
#include "engine/params/sharding.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/model_runner.h"
#include "rl/checkpoint/checkpoint_reader.h"
#include "rl/data/training_batch.h"
#include "rl/publish/version_directories.h"
#include "rl/publish/weight_snapshot.h"
#include "rl/step/column_tensors.h"
#include "rl/step/policy_update.h"
#include "rl/step/score_documents.h"
#include "rl/step/score_step.h"
#include "rl/trainer/checkpoint.h"
#include "rollout_bridge/weights/snapshot.h"
#include "rollout_bridge/weights/weight_receiver.h"
#include "tests/support/assertion_lock.h"
#include "tests/support/catch.h"
#include "tests/support/checkpoints.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

using ringside::test::tiny_config;

engine::Decoder make_decoder(uint64_t seed, at::ScalarType dtype = at::kFloat) {
  return test::random_decoder(tiny_config(), dtype, seed);
}

bool same_parameters(const engine::Decoder& a, const engine::Decoder& b) {
  const auto left = a.units(), right = b.units();
  for (std::size_t u = 0; u < left.size(); ++u) {
    if (!at::equal(left[u]->flat(), right[u]->flat())) {
      return false;
    }
  }
  return true;
}

engine::ModelRunner make_runner(uint64_t seed, at::ScalarType dtype,
                                const sp::ProcessGroups& comms = sp::single_rank_groups()) {
  auto decoder = std::make_unique<engine::Decoder>(make_decoder(seed, dtype));
  return {std::make_unique<engine::LanguageModel>(std::move(decoder)), comms,
          engine::AdamWOptions{}};
}

void set_gradients(const std::vector<engine::ParamUnit*>& units) {
  for (engine::ParamUnit* unit : units) {
    unit->grad().copy_(
        at::sin(at::arange(unit->flat().numel(), unit->flat().options().requires_grad(false))));
  }
}

void take_step(engine::Decoder& decoder, engine::AdamW& optimizer) {
  set_gradients(decoder.units());
  optimizer.step(1e-2);
}

void take_step(engine::ModelRunner& runner) {
  set_gradients(runner.model().units());
  runner.step(1e-2, 0.0);
}

}  // namespace

TEST_CASE("published weights install to the same bits and prove it") {
  const auto trainer = make_decoder(1);
  auto worker = make_decoder(2);
  const auto snapshot = rl::snapshot_weights(trainer, at::kFloat, "run", 1, 5);
  CHECK(rl::installed_root_hash(worker, snapshot->manifest) != snapshot->manifest.root_hash);
  rl::install_weights(worker, *snapshot);
  CHECK(same_parameters(trainer, worker));
  CHECK(rl::installed_root_hash(worker, snapshot->manifest) == snapshot->manifest.root_hash);
}

TEST_CASE("a snapshot is independent of later training; bf16 is read back in bf16") {
  auto trainer = make_decoder(1);
  auto worker = make_decoder(2, at::kBFloat16);
  const auto snapshot = rl::snapshot_weights(trainer, at::kBFloat16, "run", 1, 0);
  engine::AdamW optimizer(trainer.units(), {});
  take_step(trainer, optimizer);
  rl::install_weights(worker, *snapshot);
  CHECK(rl::installed_root_hash(worker, snapshot->manifest) == snapshot->manifest.root_hash);
  CHECK_FALSE(same_parameters(trainer, worker));
}

TEST_CASE("a version received as changes installs to the trainer's bits, and its root proves it") {
  auto trainer = make_decoder(1);
  auto worker = make_decoder(2);
  engine::AdamW optimizer(trainer.units(), {});
  bridge::DeltaChain chain({});
  std::shared_ptr<const bridge::WeightSnapshot> held;
  for (int64_t version = 0; version < 3; ++version) {
    const auto sent = chain.extend(rl::snapshot_weights(trainer, at::kBFloat16, "run", 1, version));
    CHECK((sent->delta != nullptr) == (version > 0));
    bridge::WeightReceiver receiver(sent->delta ? sent->delta->manifest : sent->manifest, {}, held);
    bool changes_came = false;
    while (!receiver.complete()) {
      for (const bridge::ChunkBody& c : receiver.requests({})) {
        const bool changes = c.base_version >= 0;
        changes_came = changes_came || changes;
        std::vector<std::byte> bytes;
        for (uint64_t i = c.tensor; i < c.tensor + c.tensors; ++i) {
          const auto& from = changes ? sent->delta->payloads[i] : sent->tensors[i];
          bytes.insert(bytes.end(), from.bytes.begin(), from.bytes.end());
        }
        REQUIRE(receiver.accept(c, bridge::Frame(bytes).subspan(c.offset, c.bytes)).ok());
      }
    }
    CHECK(changes_came == (version > 0));
    held = receiver.take();
    rl::install_weights(worker, *held);
    CHECK(rl::installed_root_hash(worker, held->manifest) == sent->manifest.root_hash);
    for (engine::ParamUnit* unit : trainer.units()) {  // a small step moves few bf16 values
      unit->grad().copy_(
          at::sin(at::arange(unit->flat().numel(), unit->flat().options().requires_grad(false))));
    }
    optimizer.step(1e-5);
  }
}

// A router's correction of which bf16 would change every number.
engine::Decoder decoder_with_correction() {
  auto decoder = test::random_decoder(test::latent_config(), at::kFloat, 1);
  const at::NoGradGuard no_grad;
  decoder.units().back()->flat().copy_(at::arange(6, at::kFloat).add(1).reciprocal());
  return decoder;
}

TEST_CASE("the correction of a router is published and saved in fp32 beside bf16 weights") {
  const auto trainer = decoder_with_correction();
  auto worker = test::random_decoder(test::latent_config(), at::kBFloat16, 2);
  const auto snapshot = rl::snapshot_weights(trainer, at::kBFloat16, "run", 1, 0);
  rl::install_weights(worker, *snapshot);
  const at::Tensor& sent = trainer.units().back()->flat();
  CHECK_FALSE(sent.equal(sent.to(at::kBFloat16).to(at::kFloat)));
  CHECK(worker.units().back()->flat().equal(sent));
  CHECK(rl::installed_root_hash(worker, snapshot->manifest) == snapshot->manifest.root_hash);
  worker.add_adapters({2, 4.0, {"o_proj"}});  // freezes in the compute dtype
  CHECK(worker.units().back()->flat().equal(sent));
  const test::TemporaryDirectory dir;
  engine::save_decoder(trainer, dir.path(), at::kBFloat16);
  CHECK(engine::load_decoder(dir.path(), at::kBFloat16).units().back()->flat().equal(sent));
}

TEST_CASE("a copy in shared memory is the copy in ordinary memory") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  auto decoder = GENERATE(false, true) ? decoder_with_correction() : make_decoder(1);
  bridge::SharedBlocks blocks;
  const auto block = blocks.take(engine::WeightView(decoder).bytes(dtype));
  auto shared = rl::copy_weights(decoder, dtype, block);
  const auto plain = rl::snapshot_weights(decoder, dtype, "run", 1, 0);
  decoder.units()[0]->flat().detach().zero_();  // trained on meanwhile
  const auto snapshot = bridge::make_snapshot("run", 1, 0, shared, block);
  CHECK(snapshot->manifest == plain->manifest);
  CHECK(bridge::root_hash_of(shared) == plain->manifest.root_hash);
  CHECK_THROWS_AS(rl::copy_weights(decoder, dtype, blocks.take(block->bytes().size() - 1)),
                  std::invalid_argument);
}

TEST_CASE("a version's directory made of a copy is the decoder's own") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto decoder = GENERATE(false, true) ? decoder_with_correction() : make_decoder(1);
  const test::TemporaryDirectory dir;
  const rl::VersionDirectories directories(dir.path(), /*keep=*/0, dtype, "");
  const auto of_decoder = directories.write(decoder, 1, 1);
  auto tensors = rl::tensors_of(rl::copy_weights(decoder, dtype));  // the copies live in them
  const auto of_copy = directories.write(decoder.config(), tensors, 1, 2);
  const auto text_of = [](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(of_decoder)) {
    CHECK(text_of(entry.path()) == text_of(of_copy / entry.path().filename()));
    ++files;
  }
  CHECK(files == 3);  // config, generation config, weights
}

TEST_CASE("a hybrid model is published under the names and with the bytes of its saved files") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const bool experts = GENERATE(false, true);
  const auto trainer = test::random_decoder(test::hybrid_config(experts), at::kFloat, 1);
  const test::TemporaryDirectory dir;
  engine::save_decoder(trainer, dir.path(), dtype);
  const engine::WeightFiles files(dir.path());
  const auto published = rl::copy_weights(trainer, dtype);
  CHECK(published.size() == files.names().size());
  for (const bridge::NamedBuffer& tensor : published) {
    CAPTURE(tensor.name);
    REQUIRE(files.contains(tensor.name));
    const at::Tensor stored = files.read(tensor.name);
    REQUIRE(stored.nbytes() == tensor.data.bytes.size());
    CHECK(std::memcmp(stored.const_data_ptr(), tensor.data.bytes.data(), stored.nbytes()) == 0);
  }
  auto worker = test::random_decoder(test::hybrid_config(experts), dtype, 2);
  const auto snapshot = rl::snapshot_weights(trainer, dtype, "run", 1, 0);
  rl::install_weights(worker, *snapshot);
  CHECK(same_parameters(worker, engine::load_decoder(dir.path(), dtype)));
}

TEST_CASE("weights of another model are refused and change nothing") {
  auto config = tiny_config();
  config.num_hidden_layers = 1;
  engine::Decoder other(config, at::kFloat);
  auto worker = make_decoder(2);
  const auto before = make_decoder(2);
  CHECK_THROWS_WITH(
      rl::install_weights(worker, *rl::snapshot_weights(other, at::kFloat, "run", 1, 0)),
      Catch::Contains("tensors"));
  CHECK(same_parameters(worker, before));
}

TEST_CASE("a checkpoint brings back weights, moments and counters, bf16 masters included") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const test::TemporaryDirectory dir;
  auto policy = make_runner(1, dtype);
  take_step(policy);
  take_step(policy);
  rl::CheckpointManifest manifest;
  manifest.state = {2, 2, 2, 7, "run"};
  test::save_checkpoint(rl::checkpoint_path(dir.path(), 2), policy, manifest);
  REQUIRE(rl::latest_checkpoint(dir.path()) == rl::checkpoint_path(dir.path(), 2));

  auto restored = make_runner(9, dtype);
  const rl::CheckpointReader reader(*rl::latest_checkpoint(dir.path()));
  reader.fill("policy", restored.state_slices());
  restored.set_step_count(reader.manifest().optimizer_steps.at("policy"));
  CHECK(reader.manifest().state.step == 2);
  CHECK(reader.manifest().state.run_id == "run");
  CHECK(same_parameters(policy.decoder(), restored.decoder()));
  take_step(policy);
  take_step(restored);
  CHECK(same_parameters(policy.decoder(), restored.decoder()));
}

// A model with adapters drawn from `seed`, B not zero, on the base of make_decoder(1).
engine::Decoder make_adapted(uint64_t seed, at::ScalarType dtype = at::kFloat,
                             bool quantised = false) {
  engine::WeightStorage storage;
  if (quantised) {
    storage.projections = engine::QuantisedFormat::kNf4;
  }
  engine::Decoder decoder = test::stored_as(make_decoder(1, dtype), storage);
  engine::Adapters& adapters = decoder.add_adapters({2, 4.0, engine::adapter_targets()});
  at::manual_seed(seed);
  adapters.unit().flat().detach().copy_(at::randn(adapters.unit().flat().sizes()) * 0.3);
  return decoder;
}

const at::Tensor& factors(const engine::Decoder& decoder) {
  return decoder.adapters()->unit().flat();
}

TEST_CASE("adapters published alone install to the same bits, under the names of PEFT's files") {
  for (const bool quantised : {false, true}) {
    const auto trainer = make_adapted(1, at::kFloat, quantised);
    auto worker = make_adapted(2, at::kFloat, quantised);
    const auto published = engine::WeightView::adapters_of(trainer);
    const auto snapshot =
        bridge::make_snapshot("run", 1, 5, rl::copy_weights(published, at::kFloat));
    CHECK(snapshot->manifest.tensors.front().name ==
          "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    CHECK(published.bytes(at::kFloat) < engine::WeightView(trainer).bytes(at::kFloat));
    CHECK(rl::installed_root_hash(worker, snapshot->manifest) != snapshot->manifest.root_hash);
    rl::install_weights(worker, *snapshot);
    CHECK(at::equal(factors(worker), factors(trainer)));
    CHECK(rl::installed_root_hash(worker, snapshot->manifest) == snapshot->manifest.root_hash);
    auto plain = make_decoder(3);
    CHECK_THROWS_WITH(rl::install_weights(plain, *snapshot), Catch::Contains("tensors"));
  }
  CHECK_THROWS_WITH(engine::WeightView::adapters_of(make_decoder(1)),
                    Catch::Contains("no adapters"));
}

TEST_CASE("whole weights of a model with adapters are published merged, as it is saved") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool quantised : {false, true}) {
      const auto trainer = make_adapted(1, dtype, quantised);
      auto worker = make_decoder(2, dtype);
      rl::install_weights(worker, *rl::snapshot_weights(trainer, dtype, "run", 1, 5));
      const test::TemporaryDirectory dir;
      engine::save_decoder(trainer, dir.path(), dtype);
      CHECK(same_parameters(worker, engine::load_decoder(dir.path(), dtype)));
      // The sum in fp32, cast once.
      CHECK(at::equal(worker.units()[1]->flat().detach(),
                      effective_values(trainer, 1).to(dtype).to(at::kFloat)));
      CHECK_FALSE(at::equal(worker.units()[1]->flat().detach(),
                            make_decoder(1, dtype).units()[1]->flat().detach()));
    }
  }
}

TEST_CASE("a checkpoint brings back adapters and their moments on the base of the model") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const test::TemporaryDirectory dir;
  const auto runner = [&](uint64_t seed) {
    return engine::ModelRunner(std::make_unique<engine::LanguageModel>(
                                   std::make_unique<engine::Decoder>(make_adapted(seed, dtype))),
                               sp::single_rank_groups(), engine::AdamWOptions{});
  };
  auto policy = runner(1);
  CHECK(policy.state_slices().size() == 3 * policy.decoder().adapters()->unit().specs().size());
  take_step(policy);
  take_step(policy);
  rl::CheckpointManifest manifest;
  manifest.state = {2, 2, 2, 7, "run"};
  test::save_checkpoint(dir.path() / "c", policy, manifest);
  auto restored = runner(9);
  const rl::CheckpointReader reader(dir.path() / "c");
  reader.fill("policy", restored.state_slices());
  restored.state_restored();
  restored.set_step_count(reader.manifest().optimizer_steps.at("policy"));
  CHECK(at::equal(factors(policy.decoder()), factors(restored.decoder())));
  take_step(policy);
  take_step(restored);
  CHECK(at::equal(factors(policy.decoder()), factors(restored.decoder())));
  CHECK(same_parameters(policy.decoder(), restored.decoder()));
  CHECK_THROWS_WITH(rl::export_checkpoint(dir.path() / "c", dir.path() / "exported"),
                    Catch::Contains("holds adapters alone"));
}

TEST_CASE("an update with recomputed activations is the same update, on every layout") {
  std::vector<sp::Document> documents;
  for (int64_t d = 0; d < 5; ++d) {
    documents.push_back(rl::make_scored_document({1, 2 + d, 3, 4, 5 + d, 6, 7}, 2));
  }
  const auto update = [&](sp::MeshShape shape, bool recompute) {
    std::vector<rl::UpdateResult> results(shape.world_size());
    test::run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
      auto policy = make_runner(3, at::kDouble, comms);
      policy.decoder().set_activation_options(
          {recompute ? engine::Recompute::kFull : engine::Recompute::kNone});
      const rl::LocalBatch local{sp::collate(documents, mesh, {{4, 2, 8}, 16, {}}), 0};
      const auto inputs = rl::model_inputs(local, {}, at::kDouble);
      const auto loss = [](const engine::HeadOutput& output, const engine::Columns&,
                           rl::Figures& figures) {
        return rl::sft_loss(output.logprobs_n, output.entropy_n,
                            at::full_like(output.logprobs_n.detach(), 1.0 / 25), figures);
      };
      for (int step = 0; step < 2; ++step) {
        results[mesh.rank()] =
            rl::update_policy(policy, inputs, loss, {1e-2, 1.0}, *comms.control(sp::axes::kLoss));
      }
    });
    return results.back();
  };
  const auto expected = update({1, 1, 1}, false);
  CHECK(expected.grad_norm > 0.1);
  for (const auto& shape : std::vector<sp::MeshShape>{{1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 1, 1}}) {
    const auto result = update(shape, true);
    CHECK(result.grad_norm == Approx(expected.grad_norm).epsilon(1e-10));
    CHECK(result.figures["loss"] == Approx(expected.figures["loss"]).epsilon(1e-10));
    CHECK(result.figures["tokens"] == 25);
  }
}

TEST_CASE("documents are scored to the same figures at every layout, in their own order") {
  std::vector<sp::Document> documents;
  for (int64_t d = 0; d < 7; ++d) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 2 + 3 * d; ++i) {
      ids.push_back((5 * i + d) % 19);
    }
    documents.push_back(rl::make_scored_document(ids, 1));
  }
  for (int64_t d = 0; d < 4; ++d) {  // a prompt of 9 tokens with four completions
    std::vector<int64_t> ids{1, 2, 3, 4, 5, 6, 7, 8, 9};
    ids.insert(ids.end(), 2 + d, 11 + d);
    documents.push_back(rl::make_scored_document(ids, 1));
  }
  std::vector<std::vector<double>> expected;
  int variant = 0;
  for (const auto& shape : std::vector<sp::MeshShape>{{1, 1, 1},
                                                      {1, 1, 1},
                                                      {1, 2, 1},
                                                      {1, 2, 1},
                                                      {1, 1, 2},
                                                      {2, 1, 1},
                                                      {2, 1, 1},
                                                      {1, 2, 2}}) {
    sp::SequenceOptions sequence;
    sequence.shared_prefix = variant % 2 == 1;
    sequence.plan.ring_impl = variant % 4 < 3 ? sp::RingImpl::kP2p : sp::RingImpl::kAllGather;
    ++variant;
    std::vector<std::vector<std::vector<double>>> results(shape.world_size());
    test::run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
      const auto model = make_runner(3, at::kDouble, comms);
      results[mesh.rank()] = rl::score_documents(model, documents, mesh, comms, {20, sequence});
    });
    if (expected.empty()) {
      expected = results[0];
    }
    for (const auto& result : results) {
      REQUIRE(result.size() == documents.size());
      for (std::size_t d = 0; d < documents.size(); ++d) {
        REQUIRE(result[d].size() == expected[d].size());
        for (std::size_t i = 0; i < result[d].size(); ++i) {
          REQUIRE(result[d][i] == Approx(expected[d][i]).margin(1e-12));
        }
      }
    }
  }
}

// Guards: a temperature that is left out, or given to another entry. Oracle: log-softmax at T = 1,
// and the uniform distribution that it tends to as T grows.
TEST_CASE("documents are scored at each loss entry's temperature") {
  const std::vector<sp::Document> documents{rl::make_scored_document({1, 2, 3, 4}, 1),
                                            rl::make_scored_document({5, 6, 7}, 1)};
  test::run_ranks({1, 2, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto model = make_runner(3, at::kDouble, comms);
    const auto plain = rl::score_documents(model, documents, mesh, comms, {20, {}});
    const auto found =
        rl::score_documents(model, documents, mesh, comms, {20, {}}, {1.0, 1e12, 1.0, 1e12, 1.0});
    const double uniform = -std::log(static_cast<double>(model.decoder().config().vocab_size));
    const auto lock = test::assertion_lock();
    REQUIRE(found.size() == 2);
    REQUIRE(found[0].size() == 3);
    CHECK(found[0][0] == Approx(plain[0][0]).margin(1e-12));
    CHECK(found[0][1] == Approx(uniform).margin(1e-9));
    CHECK(found[0][2] == Approx(plain[0][2]).margin(1e-12));
    CHECK(found[1][0] == Approx(uniform).margin(1e-9));
    CHECK(found[1][1] == Approx(plain[1][1]).margin(1e-12));
    CHECK(std::abs(plain[1][0] - uniform) > 1e-6);
  });
}

// Guards: a sum of squared probabilities of another position, temperature or rank. Oracle: the
// probability of each word of the vocabulary, squared and added up.
TEST_CASE("squared probabilities are those of the whole vocabulary at each token's temperature") {
  const std::vector<int64_t> ids{1, 2, 3, 4};
  const std::vector<double> temperature{0.7, 1.0, 1.8};
  rl::Config config;
  config.algorithm.advantage.estimator = rl::AdvantageEstimator::kOptimalTokenBaseline;
  test::run_ranks({1, 2, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto model = make_runner(3, at::kDouble, comms);
    const int64_t words = model.decoder().config().vocab_size;
    std::vector<double> expected;
    for (std::size_t i = 0; i < temperature.size(); ++i) {
      std::vector<sp::Document> each;
      for (int64_t word = 0; word < words; ++word) {
        std::vector<int64_t> with_word(ids.begin(), ids.begin() + static_cast<int64_t>(i) + 1);
        with_word.push_back(word);
        each.push_back(rl::make_scored_document(with_word, static_cast<int64_t>(i) + 1));
      }
      double sum = 0.0;
      for (const auto& logprob :
           rl::score_documents(model, each, mesh, comms, {200, {}},
                               std::vector<double>(each.size(), temperature[i]))) {
        sum += std::exp(2.0 * logprob.at(0));
      }
      expected.push_back(sum);
    }
    const std::vector<sp::Document> documents{rl::make_scored_document(ids, 1)};
    std::vector<rl::LocalBatch> batches{
        {sp::collate(documents, mesh,
                     engine::collator_options(model.decoder().config(), 20, {},
                                              engine::tensor_place(model.decoder().context()))),
         0}};
    rl::StepColumns columns;
    columns.begin = {0, 3};
    columns.rollout.assign(3, 0.0);
    columns.temperature = temperature;
    rl::score_step(columns, batches, {model, nullptr, nullptr}, config, comms);
    const auto lock = test::assertion_lock();
    REQUIRE(columns.squares.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(columns.squares[i] == Approx(expected[i]).epsilon(1e-12));
      CHECK(expected[i] < 0.9);
    }
  });
}
