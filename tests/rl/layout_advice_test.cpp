// Guards what `ringside check` says of layouts: bytes as a run sends them, and advice that fits.
#include "rl/setup/layout_advice.h"

#include <array>

#include "rl/setup/pipeline_figures.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/tiny_model.h"

using namespace ringside;
using Catch::Contains;

namespace {

rl::Config config_of(const test::ShardLayout& layout, rl::DType dtype) {
  rl::Config config;
  config.parallel = layout.config();
  config.model.dtype = dtype;
  return config;
}

// As a device would run it: 28 layers of Qwen3-0.6B's widths.
engine::ModelConfig small_model() {
  engine::ModelConfig model = test::tiny_config(/*vocab_size=*/151936);
  model.hidden_size = 1024;
  model.intermediate_size = 3072;
  model.num_hidden_layers = 28;
  model.num_attention_heads = 16;
  model.num_key_value_heads = 8;
  model.head_dim = 128;
  model.tie_word_embeddings = true;
  return model;
}

rl::Config planned(int64_t world, int64_t tokens) {
  rl::Config config;
  config.model.dtype = rl::DType::kBFloat16;
  config.parallel.data_parallel_replicate_size = world;
  config.train.tokens_per_micro_batch = tokens;
  config.rollout.max_completion_tokens = tokens - config.rollout.max_prompt_tokens;
  return config;
}

const rl::TargetDevice kH100{c10::Device(c10::kCUDA), *sp::find_device("H100")};

std::string advice(const rl::Config& config, int64_t memory) {
  std::string text;
  for (const std::string& line : rl::describe_options(config, small_model(), kH100, memory)) {
    text += line + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("the bytes of gathers and gradient sums are those that a run sends, on nine layouts") {
  for (const test::ShardLayout& layout :
       std::vector<test::ShardLayout>{{.shard = 2, .stage = 1},
                                      {.shard = 2, .stage = 2},
                                      {.shard = 2, .stage = 3},
                                      {.shard = 3, .activations = {engine::Recompute::kFull}},
                                      {.ring = 2, .activations = {engine::Recompute::kSelective}},
                                      {.shard = 2, .ulysses = 2},
                                      {.shard = 2, .ring = 2, .mode = rl::CpFsdpMode::kNone},
                                      {.replicate = 2, .shard = 2, .stage = 1},
                                      {.shard = 2, .ulysses = 2, .expert = 2}}) {
    for (const bool tied : {true, false}) {
      engine::ModelConfig model = test::tiny_config();
      model.tie_word_embeddings = tied;
      if (layout.expert > 1) {
        model.experts = {.count = 5, .per_token = 2, .intermediate_size = 12};
      }
      CAPTURE(layout.name(), tied);
      test::ShardOutcome found;
      test::run_ranks_in_memory(
          rl::mesh_shape(layout.config()),
          [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
            test::ShardOutcome outcome =
                test::train_sharded(layout, model, at::kBFloat16, at::kFloat, 2, mesh, groups);
            if (mesh.rank() == 0) {
              found = std::move(outcome);
            }
          },
          rl::sharding_axes(layout.config()));
      const rl::StepTraffic predicted =
          rl::state_traffic(config_of(layout, rl::DType::kBFloat16), model, found.micro_batches);
      CHECK(found.sent.at("parameters") == 2 * predicted.gather);
      CHECK(found.sent.at("gradients") == 2 * predicted.reduce_scatter);
    }
  }
}

TEST_CASE("more ranks than experts are refused, and ranks for a model without experts") {
  rl::ParallelConfig parallel;
  CHECK(rl::expert_count_problem(parallel, 0).empty());
  parallel.expert_parallel_size = 4;
  CHECK(rl::expert_count_problem(parallel, 4).empty());
  CHECK_THAT(rl::expert_count_problem(parallel, 3), Contains("a layer has 3 experts"));
  CHECK_THAT(rl::expert_count_problem(parallel, 0), Contains("the model has no experts"));
}

TEST_CASE("options are at the same number of ranks, the cheapest first, and each fits or not") {
  const rl::Config config = planned(8, 65536);
  const auto options = rl::layout_options(config, small_model(), kH100);
  CHECK(options.size() > 100);
  double before = 0.0;
  for (const rl::LayoutOption& option : options) {
    CHECK(option.config.parallel.world_size() == 8);
    CHECK(option.time.total() >= before);
    before = option.time.total();
  }
  // Whole models with all activations of 65,536 tokens do not fit; the advice must save.
  const std::string text = advice(config, int64_t{40} << 30);
  CHECK_THAT(text, Contains("the layout above does not fit") && Contains("fits: ") &&
                       Contains("recommended: ") && Contains("computing"));
  CHECK_THAT(advice(config, int64_t{1} << 20), Contains("nothing fits; the least is"));
  CHECK_THAT(advice(planned(8, 1024), int64_t{80} << 30), Contains("the layout above fits"));
}

TEST_CASE("tensor ranks: their bytes are counted, and Ulysses is advised where it is cheaper") {
  rl::Config config = planned(4, 65536);
  config.parallel.tensor_parallel_size = 2;
  const engine::ModelConfig model = small_model();
  // Two gathers and two sums a layer, forward and backward, and those of the embedding and the
  // head.
  const int64_t row = 1024 * 2, rows = 65536 / 2;
  CHECK(rl::state_traffic(config, model, 1).tensor == (28 * 4 + 2) * 2 * rows * row);
  CHECK_THAT(rl::describe(rl::state_traffic(config, model, 1)),
             Contains("rows between tensor ranks"));
  const auto options = rl::layout_options(config, model, kH100);
  int64_t with_tensor = 0;
  for (const rl::LayoutOption& option : options) {
    CHECK(option.config.parallel.world_size() == 8);
    with_tensor += option.config.parallel.tensor_parallel_size == 2 ? 1 : 0;
  }
  CHECK(with_tensor > 100);
  // A long packed sequence of a narrow model: Ulysses sends each rank's heads once, tensor ranks
  // their hidden states eight times a layer.
  CHECK(options.front().config.parallel.tensor_parallel_size == 1);
  config.parallel.tensor_parallel_size = 1;
  CHECK(rl::state_traffic(config, model, 1).tensor == 0);
}

TEST_CASE(
    "a hybrid's delta nets are advised on as linear layers, on as many ranks as they have heads") {
  engine::ModelConfig hybrid = small_model();
  hybrid.attention.gated = true;
  hybrid.delta_net = {{4, 8, 64, 64, 4}, /*grouped_projections=*/true};
  list_blocks(hybrid);
  for (int64_t layer = 0; layer + 1 < hybrid.num_hidden_layers; ++layer) {
    hybrid.blocks[layer].token_mixer = engine::TokenMixerKind::kGatedDelta;
  }
  const auto computing = [](const engine::ModelConfig& model, int64_t tokens) {
    double least = 0.0;
    for (const rl::LayoutOption& option : rl::layout_options(planned(8, tokens), model, kH100)) {
      least = least == 0.0 ? option.time.computing : std::min(least, option.time.computing);
      CHECK((model.delta_net.shape.key_heads == 0 ||
             option.config.parallel.ulysses_parallel_size <= 4));
    }
    return least;
  };
  // The part that grows with the square of the length is that of the layers that attend: one of 28.
  const auto quadratic = [&](const engine::ModelConfig& model) {
    return computing(model, 262144) - 4 * computing(model, 65536);
  };
  CHECK(quadratic(small_model()) == Approx(28 * quadratic(hybrid)).epsilon(1e-6));
}

TEST_CASE("each saving lowers the memory of a rank, and offload moves it to the host") {
  const engine::ModelConfig model = small_model();
  const c10::Device cuda(c10::kCUDA);
  rl::Config config = planned(1, 32768);
  const int64_t plain = rl::memory_of_rank(config, model, cuda).total();
  config.model.recompute = rl::Recompute::kSelective;
  const int64_t selective = rl::memory_of_rank(config, model, cuda).total();
  config.model.recompute = rl::Recompute::kFull;
  const rl::RankMemory full = rl::memory_of_rank(config, model, cuda);
  CHECK(selective < plain);
  CHECK(full.total() < selective);
  config.model.offload_activations = true;
  const rl::RankMemory off = rl::memory_of_rank(config, model, cuda);
  CHECK(off.total() < full.total());
  CHECK(off.host == 27 * int64_t{32768} * 1024 * 2);
  config.model.mlp_tile_tokens = 1024;
  CHECK(rl::memory_of_rank(config, model, cuda).total() < off.total());
  config.optimizer.offload = rl::OptimizerOffload::kFull;
  CHECK(rl::memory_of_rank(config, model, cuda).policy.moments == 0);
}

TEST_CASE(
    "adapters need no moments, gradients or reference of the weights, and nf4 a quarter of them") {
  const engine::ModelConfig model = small_model();
  const c10::Device cuda(c10::kCUDA);
  rl::Config config = planned(1, 32768);
  config.algorithm.kl_coef = 0.01;
  const rl::RankMemory whole = rl::memory_of_rank(config, model, cuda);
  CHECK(whole.reference > 0);
  config.lora.rank = 16;
  const rl::RankMemory frozen = rl::memory_of_rank(config, model, cuda);
  CHECK(frozen.reference == 0);
  CHECK(frozen.policy.moments < whole.policy.moments / 20);
  CHECK(frozen.policy.gradients < whole.policy.gradients / 20);
  CHECK(frozen.policy.weights < whole.policy.weights * 0.55);  // bf16 in place of fp32
  config.lora.base = rl::LoraBase::kNf4;
  const rl::RankMemory packed = rl::memory_of_rank(config, model, cuda);
  CHECK(packed.policy.weights < frozen.policy.weights);
  CHECK(packed.policy.moments == frozen.policy.moments);
  config.lora.rank = 32;
  CHECK(rl::memory_of_rank(config, model, cuda).policy.moments == 2 * packed.policy.moments);
}

TEST_CASE("a vision tower adds to the memory of a rank, and divided images less") {
  engine::ModelConfig model = small_model();
  const c10::Device cuda(c10::kCUDA);
  rl::Config config = planned(1, 32768);
  const rl::RankMemory text = rl::memory_of_rank(config, model, cuda);
  // Qwen3-VL's widths.
  model.vision = {.depth = 24,
                  .width = 1024,
                  .mlp = 4096,
                  .heads = 16,
                  .patch = 16,
                  .positions = 2304,
                  .deepstack = {5, 11, 17}};
  config.data.image_key = "images";
  config.data.max_image_pixels = 1 << 20;
  const rl::RankMemory frozen = rl::memory_of_rank(config, model, cuda);
  config.model.vision = rl::VisionPart::kMergers;
  const rl::RankMemory mergers = rl::memory_of_rank(config, model, cuda);
  config.model.vision = rl::VisionPart::kTrained;
  const rl::RankMemory trained = rl::memory_of_rank(config, model, cuda);
  // Constants are of the compute dtype and have no moments.
  CHECK(frozen.policy.moments == text.policy.moments);
  CHECK(frozen.policy.weights > text.policy.weights);
  CHECK(mergers.policy.moments > text.policy.moments);
  CHECK(trained.policy.moments > mergers.policy.moments);
  CHECK(frozen.total() > text.total());
  CHECK(mergers.total() > frozen.total());
  CHECK(trained.total() > mergers.total());
  // The inputs of all blocks alone, of 4 patches a token.
  CHECK(trained.policy.activations - text.policy.activations > int64_t{24} * 4 * 32768 * 1024 * 2);
  config.parallel.ulysses_parallel_size = 2;
  CHECK(rl::memory_of_rank(config, model, cuda).policy.activations <
        0.55 * static_cast<double>(trained.policy.activations));
  // Images of all of a micro-batch cannot be divided.
  config.data.max_image_pixels = int64_t{32768} * 4 * 16 * 16;
  CHECK(rl::memory_of_rank(config, model, cuda).policy.activations >
        0.8 * static_cast<double>(trained.policy.activations));
}

TEST_CASE("a memory size is read with its unit, anything else is refused") {
  CHECK(rl::bytes_of_text("80GiB") == int64_t{80} << 30);
  CHECK(rl::bytes_of_text("1.5GB") == 1500000000);
  CHECK(rl::bytes_of_text("1024") == 1024);
  CHECK(rl::bytes_of_text("1048576GiB") == int64_t{1} << 50);
  for (const char* text :
       {"", "GiB", "80 GiB", "-1GiB", "80Gi", "0", "nan", "inf", "1e300", "8589934592GiB", "0.5"}) {
    CHECK_THROWS_WITH(rl::bytes_of_text(text), Contains("expected a memory size such as 80GiB"));
  }
}

TEST_CASE("a pipeline's idle time, messages and fullest rank are known before a run") {
  rl::Config config = planned(/*world=*/1, /*tokens=*/8192);
  config.parallel.pipeline_parallel_size = 4;
  config.parallel.pipeline_schedule = rl::PipelineChoice::kOneForwardOneBackward;
  const engine::ModelConfig model = small_model();
  const rl::PipelineFigures figures = rl::pipeline_figures(config, model);
  REQUIRE(figures.stages.size() == 4);
  const int64_t m = rl::full_micro_batches(config);
  REQUIRE(m > 8);
  // 1F1B of equal stages: P-1 of m + P-1 forwards and backwards. A stage of seven layers has up to
  // one layer less work than the largest.
  const auto inputs = static_cast<double>(m);
  CHECK(figures.idle >= 3.0 / (inputs + 3.0));
  CHECK(figures.idle <= 3.0 / (inputs + 3.0) + 1.0 / 7.0);
  CHECK(figures.live == 4);
  // A stage in the middle sends hidden states and gradients, in bf16.
  CHECK(figures.messages == 2 * m * 8192 * model.hidden_size * 2);
  rl::Config divided = config;
  divided.parallel.tensor_parallel_size = 3;  // each sends its own rows
  CHECK(rl::pipeline_figures(divided, model).messages == 2 * m * 2731 * model.hidden_size * 2);
  CHECK_THAT(rl::describe(figures, config.parallel),
             Contains("4 stages on 4 ranks") && Contains("-27 and head"));

  const c10::Device cuda(c10::kCUDA);
  const rl::RankMemory worst = rl::memory_of_rank(config, model, cuda);
  REQUIRE(worst.pipeline_rank);
  CHECK_THAT(rl::describe(worst), Contains("of the pipeline, which needs the most"));
  rl::Config whole = config;
  whole.parallel.pipeline_parallel_size = 1;
  const rl::RankMemory one = rl::memory_of_rank(whole, model, cuda);
  // Stages divide state; the first and the last have the embedding or its copy.
  CHECK(worst.policy.weights < one.policy.weights * 6 / 10);
  CHECK(worst.total() < one.total());
  // Fewer stage inputs at a time take less.
  config.parallel.pipeline_schedule = rl::PipelineChoice::kGpipe;
  CHECK(rl::memory_of_rank(config, model, cuda).total() > worst.total());
}
