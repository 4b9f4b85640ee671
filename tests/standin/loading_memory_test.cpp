// Device memory while a policy is loaded, against the prediction: a start that needs more than the
// training after it cannot be seen in what training takes.
#include "engine/runner/loading_memory.h"

#include <functional>
#include <iostream>
#include <tuple>
#include <vector>

#include "engine/io/hf_directory.h"
#include "engine/models/random_weights.h"
#include "engine/models/weight_export.h"
#include "engine/runner/layers_memory.h"
#include "rl/setup/memory_of_rank.h"
#include "rl/setup/model_setup.h"
#include "rl/step/reference_policy.h"
#include "tests/standin/measured_pass.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

// Most parameters are in the layers, as in a large model.
engine::ModelConfig model_config(int64_t experts = 0) {
  engine::ModelConfig config = test::tiny_config(/*vocab_size=*/96);
  config.hidden_size = 64;
  config.intermediate_size = 192;
  config.num_hidden_layers = 8;
  config.head_dim = 16;
  config.experts.count = experts;
  config.experts.per_token = experts > 0 ? 2 : 0;
  config.experts.intermediate_size = experts > 0 ? 64 : 0;
  return config;
}

rl::Config recipe(const std::filesystem::path& dir, rl::DType dtype, int64_t rank,
                  rl::LoraBase base, int64_t shards) {
  rl::Config config;
  config.model.path = dir.string();
  config.model.dtype = dtype;
  config.lora.rank = rank;
  config.lora.base = base;
  config.parallel.data_parallel_shard_size = shards;
  return config;
}

struct Measured {
  int64_t peak = 0, kept = 0;  // device bytes of rank 0
};

Measured load(const rl::Config& config) {
  Measured measured;
  standin::Scope scope;
  const rl::ParallelConfig& parallel = config.parallel;
  sp::MeshShape mesh;
  mesh.dp_shard = parallel.data_parallel_shard_size;
  standin::run_standin_ranks_in_memory(
      mesh,
      [&](const sp::Mesh& ranks, const sp::ProcessGroups& comms, c10::Device) {
        const engine::ComputeContext context = rl::compute_context(config, comms);
        const int64_t before = scope.current_bytes(0);
        if (ranks.rank() == 0) {
          scope.reset_peak(0);
        }
        const auto policy = rl::load_policy(config, context);
        if (ranks.rank() == 0) {
          measured = {scope.peak_bytes(0) - before, scope.current_bytes(0) - before};
        }
      },
      std::chrono::seconds(20), rl::sharding_axes(parallel));
  CHECK(scope.text() == "");
  return measured;
}

// Device bytes that the reference of rank 0 keeps beside the policy.
int64_t load_reference(const rl::Config& config) {
  int64_t kept = 0;
  standin::Scope scope;
  sp::MeshShape mesh;
  mesh.dp_shard = config.parallel.data_parallel_shard_size;
  standin::run_standin_ranks_in_memory(
      mesh,
      [&](const sp::Mesh& ranks, const sp::ProcessGroups& comms, c10::Device) {
        const engine::LanguageModel policy(
            rl::load_policy(config, rl::compute_context(config, comms)));
        const int64_t before = scope.current_bytes(static_cast<int>(ranks.rank()));
        const auto reference = rl::make_reference(config, policy, comms);
        REQUIRE(reference != nullptr);
        if (ranks.rank() == 0) {
          kept = scope.current_bytes(0) - before;
        }
      },
      std::chrono::seconds(20), rl::sharding_axes(config.parallel));
  CHECK(scope.text() == "");
  return kept;
}

}  // namespace

TEST_CASE("loading a policy takes no more device memory than predicted") {
  const bool drawn = GENERATE(false, true);
  test::TemporaryDirectory dir;
  const engine::ModelConfig model = model_config();
  engine::save_decoder(test::random_decoder(model, at::kFloat, 3), dir.path(), at::kBFloat16);
  using rl::DType;
  using rl::LoraBase;
  for (const auto& [name, dtype, rank, base, shards] :
       std::vector<std::tuple<const char*, DType, int64_t, LoraBase, int64_t>>{
           {"full", DType::kBFloat16, 0, LoraBase::kModel, 1},
           {"full, fp32", DType::kFloat32, 0, LoraBase::kModel, 1},
           {"full, 2 shards", DType::kBFloat16, 0, LoraBase::kModel, 2},
           {"LoRA", DType::kBFloat16, 4, LoraBase::kModel, 1},
           {"LoRA, fp32", DType::kFloat32, 4, LoraBase::kModel, 1},
           {"LoRA, 2 shards", DType::kBFloat16, 4, LoraBase::kModel, 2},
           {"QLoRA, nf4", DType::kBFloat16, 4, LoraBase::kNf4, 1},
           {"QLoRA, int8", DType::kBFloat16, 4, LoraBase::kInt8, 1},
           {"QLoRA, nf4, 2 shards", DType::kBFloat16, 4, LoraBase::kNf4, 2}}) {
    CAPTURE(name, drawn);
    rl::Config config = recipe(dir.path(), dtype, rank, base, shards);
    config.model.init = drawn ? rl::ModelInit::kRandom : rl::ModelInit::kPretrained;
    const Measured measured = load(config);
    const rl::RankMemory predicted = rl::memory_of_rank(config, model, standin::device());
    const int64_t kept = predicted.policy.weights;
    std::cout << name << ": peak " << measured.peak << ", predicted " << predicted.loading
              << "; kept " << measured.kept << ", predicted " << kept << "\n";
    CHECK(static_cast<double>(predicted.loading) ==
          Approx(static_cast<double>(measured.peak)).epsilon(0.1));
    CHECK(static_cast<double>(kept) == Approx(static_cast<double>(measured.kept)).epsilon(0.05));
  }
}

TEST_CASE("a frozen reference is kept in the compute dtype, a moving one has its masters") {
  test::TemporaryDirectory dir;
  const engine::ModelConfig model = model_config();
  engine::save_decoder(test::random_decoder(model, at::kFloat, 3), dir.path(), at::kBFloat16);
  const auto elements = static_cast<double>(engine::elements(engine::decoder_specs(model)));
  struct Case {
    const char* name;
    rl::DType dtype;
    int64_t rank, shards, update_every;
    bool own_path;
    double bytes;  // of an element
  };
  for (const Case& one : {Case{"frozen", rl::DType::kBFloat16, 0, 1, 0, false, 2},
                          Case{"frozen, 2 shards", rl::DType::kBFloat16, 0, 2, 0, false, 1},
                          Case{"frozen, fp32", rl::DType::kFloat32, 0, 1, 0, false, 4},
                          Case{"moving", rl::DType::kBFloat16, 0, 1, 8, false, 4},
                          Case{"LoRA", rl::DType::kBFloat16, 4, 1, 0, false, 0},
                          Case{"LoRA, own files", rl::DType::kBFloat16, 4, 1, 0, true, 2}}) {
    CAPTURE(one.name);
    rl::Config config = recipe(dir.path(), one.dtype, one.rank, rl::LoraBase::kModel, one.shards);
    config.algorithm.kl_coef = 0.1;
    config.algorithm.reference_update_every = one.update_every;
    config.model.reference_path = one.own_path ? dir.path().string() : "";
    const auto kept = static_cast<double>(load_reference(config));
    const auto predicted =
        static_cast<double>(rl::memory_of_rank(config, model, standin::device()).reference);
    std::cout << "reference, " << one.name << ": kept " << kept << ", predicted " << predicted
              << "\n";
    CHECK(kept == Approx(one.bytes * elements).epsilon(0.05).margin(4096));
    CHECK(predicted == Approx(kept).epsilon(0.05).margin(4096));
  }
}

TEST_CASE("packing a layer takes little more than its master values") {
  // One piece of the packing is far less than a layer of this size.
  engine::ModelConfig model = model_config();
  model.hidden_size = 512;
  model.intermediate_size = 4096;
  model.num_hidden_layers = 2;
  const engine::ComputeContext context(at::kBFloat16, standin::device());
  for (const auto format : {engine::QuantisedFormat::kNf4, engine::QuantisedFormat::kInt8}) {
    const engine::WeightStorage storage{.projections = format};
    standin::Scope scope;
    engine::RandomWeights draw(model, 1, 0.1);
    const engine::Decoder decoder(model, context, storage, std::ref(draw));
    const engine::LoadingMemory predicted = engine::loading_memory(model, context, storage, {});
    std::cout << "packed layer by layer: peak " << scope.peak_bytes() << ", predicted "
              << predicted.peak << "\n";
    CHECK(static_cast<double>(predicted.peak) ==
          Approx(static_cast<double>(scope.peak_bytes())).epsilon(0.1));
    CHECK(static_cast<double>(predicted.kept) ==
          Approx(static_cast<double>(scope.current_bytes())).epsilon(0.05));
  }
}

TEST_CASE("a whole copy of a policy in host memory is on the device, in the compute dtype") {
  test::TemporaryDirectory dir;
  const engine::ModelConfig model = model_config();
  const engine::Decoder drawn = test::random_decoder(model, at::kFloat, 3);
  engine::save_decoder(drawn, dir.path(), at::kFloat);
  rl::Config config = recipe(dir.path(), rl::DType::kBFloat16, 0, rl::LoraBase::kModel, 2);
  config.optimizer.offload = rl::OptimizerOffload::kFull;
  standin::Scope scope;
  sp::MeshShape mesh;
  mesh.dp_shard = 2;
  standin::run_standin_ranks_in_memory(
      mesh,
      [&](const sp::Mesh& ranks, const sp::ProcessGroups& comms, c10::Device) {
        const engine::LanguageModel policy(
            rl::load_policy(config, rl::compute_context(config, comms)));
        const int64_t before = scope.current_bytes(static_cast<int>(ranks.rank()));
        std::unique_ptr<engine::Decoder> whole;
        engine::export_weights(
            engine::WeightView(policy.stages()),
            [&](engine::UnitExport& units) { whole = engine::whole_copy(units); },
            *comms.control(sp::axes::kLoss));
        const int64_t bytes = scope.current_bytes(static_cast<int>(ranks.rank())) - before;
        CHECK(static_cast<double>(bytes) ==
              Approx(2.0 * static_cast<double>(engine::elements(engine::decoder_specs(model))))
                  .epsilon(0.02));
        for (std::size_t u = 0; u < drawn.units().size(); ++u) {
          CHECK(at::equal(whole->units()[u]->gathered().gather_flat().to(at::kCPU),
                          drawn.units()[u]->flat().detach().to(at::kBFloat16)));
        }
      },
      std::chrono::seconds(20), rl::sharding_axes(config.parallel));
  CHECK(scope.text() == "");
}
