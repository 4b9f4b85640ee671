// Guards the comparison of a run's memory with the machine's: a run that cannot fit is refused with
// keys that make it fit, models that fine-tuning does not make are not counted, and nothing is left
// out of bases that cannot be packed.
#include "rl/preflight/run_memory.h"

#include "engine/layers/decoder_layer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

using namespace ringside;
using Catch::Contains;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// The shape of Qwen2.5-0.5B: 494 million parameters.
engine::ModelConfig half_billion() {
  engine::ModelConfig model = test::tiny_config(/*vocab_size=*/151936);
  model.hidden_size = 896;
  model.intermediate_size = 4864;
  model.num_hidden_layers = 24;
  model.num_attention_heads = 14;
  model.num_key_value_heads = 2;
  model.head_dim = 64;
  model.tie_word_embeddings = true;
  return model;
}

// The shape of Qwen3-8B.
engine::ModelConfig eight_billion() {
  engine::ModelConfig model = test::tiny_config(/*vocab_size=*/151936);
  model.hidden_size = 4096;
  model.intermediate_size = 12288;
  model.num_hidden_layers = 36;
  model.num_attention_heads = 32;
  model.num_key_value_heads = 8;
  model.head_dim = 128;
  model.tie_word_embeddings = false;
  return model;
}

rl::Config two_ranks() {
  rl::Config config;
  config.parallel.ringattn_parallel_size = 2;
  config.parallel.data_parallel_replicate_size = 1;
  config.rollout.prompts_per_step = 16;
  config.rollout.group_size = 8;
  config.rollout.max_completion_tokens = 512;
  return config;
}

rl::MachineMemory machine_of(int64_t bytes) { return {bytes, bytes, 0}; }

rl::MemoryFit compare(const rl::Config& config, const engine::ModelConfig& model, int64_t bytes) {
  return rl::compare_memory(config, model, {}, machine_of(bytes), /*device_bytes=*/0);
}

void make_machine(const std::filesystem::path& root, const std::string& groups) {
  std::filesystem::create_directories(root / "proc/self");
  test::write_file(root / "proc/meminfo",
                   "MemTotal:       25165824 kB\nMemFree: 1 kB\nMemAvailable:   20971520 kB\n");
  test::write_file(root / "proc/self/cgroup", groups);
}

void limit(const std::filesystem::path& folder, const char* file, const std::string& text) {
  std::filesystem::create_directories(folder);
  test::write_file(folder / file, text);
}

}  // namespace

TEST_CASE("the memory of a machine is bounded by the lowest limit of its control groups") {
  test::TemporaryDirectory dir;
  const std::filesystem::path& root = dir.path();
  const std::filesystem::path groups = root / "sys/fs/cgroup";
  make_machine(root, "0::/a/b\n");
  CHECK(rl::machine_memory(root).total == 24 * kGiB);
  CHECK(rl::machine_memory(root).available == 20 * kGiB);
  CHECK(rl::machine_memory(root).usable() == 24 * kGiB);
  limit(groups / "a/b", "memory.max", "max\n");
  CHECK(rl::machine_memory(root).limit == 0);
  limit(groups / "a", "memory.max", "4294967296\n");
  CHECK(rl::machine_memory(root).usable() == 4 * kGiB);
  CHECK_THAT(rl::machine_memory(root).text(), Contains("4.00 GiB") && Contains("control group"));
  limit(groups / "a/b", "memory.max", "2147483648\n");
  CHECK(rl::machine_memory(root).usable() == 2 * kGiB);
}

TEST_CASE("limits of the first version of control groups count too") {
  test::TemporaryDirectory dir;
  const std::filesystem::path& root = dir.path();
  const std::filesystem::path groups = root / "sys/fs/cgroup/memory";
  make_machine(root, "4:cpu,memory:/docker/x\n1:cpuset:/docker/x\n0::/\n");
  limit(groups / "docker/x", "memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(rl::machine_memory(root).limit == 0);
  // A container sees its own group as the mount's top.
  limit(groups, "memory.limit_in_bytes", "8589934592\n");
  CHECK(rl::machine_memory(root).usable() == 8 * kGiB);
}

TEST_CASE("a machine that cannot be read bounds nothing") {
  test::TemporaryDirectory dir;
  CHECK(rl::machine_memory(dir.path()).usable() == 0);
  CHECK(compare(two_ranks(), eight_billion(), 0).error.empty());
}

TEST_CASE("a run that cannot fit is refused with the keys that make it fit") {
  const rl::Config config = two_ranks();
  const rl::RunMemory memory = rl::run_memory(config, half_billion(), {});
  CHECK(memory.ranks == 2);
  CHECK(memory.workers == 1);
  CHECK(memory.published > 0);
  REQUIRE(memory.on_host() > 24 * kGiB);
  const rl::MemoryFit fit = compare(config, half_billion(), 24 * kGiB);
  CHECK(fit.warning.empty());
  CHECK_THAT(fit.error, Contains("2 ranks of") && Contains("1 worker of") &&
                            Contains("which has 24.0 GiB") &&
                            Contains("with model.recompute=full"));
  // What is said to fit does fit.
  const auto savings = rl::memory_savings(config, half_billion(), {}, false, 24 * kGiB);
  REQUIRE_FALSE(savings.empty());
  CHECK(savings.back().bytes <= 24 * kGiB);
  CHECK(rl::run_memory(savings.back().config, half_billion(), {}).on_host() ==
        savings.back().bytes);
  CHECK(compare(savings.back().config, half_billion(), 24 * kGiB).error.empty());
}

TEST_CASE("a rank's memory has the copy that a checkpoint is written from") {
  rl::Config config = two_ranks();
  const auto beside = [&] {  // what a rank has on the host beside its training
    const rl::RunMemory memory = rl::run_memory(config, half_billion(), {});
    return memory.rank_on_host - memory.rank.total() - memory.rank.host;
  };
  const auto state = [&] {
    const engine::MemoryEstimate policy = rl::memory_of_rank(config, half_billion()).policy;
    return policy.moments / 2 * 3;  // masters and both moments
  };
  const int64_t process = int64_t{150} << 20;
  CHECK(beside() == state() + process);  // each rank has a half of the model
  config.parallel.cp_fsdp_mode = rl::CpFsdpMode::kNone;
  CHECK(beside() == state() / 2 + process);  // each has all of it, and saves a half
  config.lora.rank = 16;
  CHECK(beside() == state() / 2 + process);
  CHECK(state() < kGiB / 4);
}

TEST_CASE("a worker's cache grows with its rows, and rollout.cache_mb bounds it") {
  rl::Config config = two_ranks();
  config.rollout.prompts_per_step = 4;
  config.rollout.group_size = 8;
  const auto worker = [&] { return rl::run_memory(config, half_billion(), {}).worker_model; };
  const int64_t few = worker();
  config.rollout.prompts_per_step = 32;  // 256 rows, as many as are computed together
  const int64_t most = worker();
  CHECK(most > few);
  config.rollout.prompts_per_step = 512;
  CHECK(worker() == most);
  config.rollout.cache_mb = 64;
  const int64_t bounded = worker();
  CHECK(bounded < most);
  config.rollout.cache_mb = 65;
  CHECK(worker() == bounded + (int64_t{1} << 20));
}

TEST_CASE("eight billion parameters in fp32 are refused on 24 GiB") {
  const rl::MemoryFit fit = compare(two_ranks(), eight_billion(), 24 * kGiB);
  CHECK_THAT(fit.error, Contains("lora.rank=16") && Contains("ringside check --memory"));
}

TEST_CASE("a run that takes nearly all of the memory is warned of") {
  rl::Config config = two_ranks();
  config.model.recompute = rl::Recompute::kFull;
  const int64_t needed = rl::run_memory(config, half_billion(), {}).on_host();
  CHECK(compare(config, half_billion(), 2 * needed).warning.empty());
  const rl::MemoryFit close = compare(config, half_billion(), needed + needed / 20);
  CHECK(close.error.empty());
  CHECK_THAT(close.warning, Contains("it is close"));
  // As is one that fits the machine, but not beside what runs there now.
  const rl::MachineMemory busy{4 * needed, needed / 2, 0};
  CHECK_THAT(rl::compare_memory(config, half_billion(), {}, busy, 0).warning,
             Contains("are free now"));
}

TEST_CASE("a rank that does not fit its device is refused, whatever the host has") {
  rl::RunPlace place;
  place.device = c10::Device(c10::kCUDA);
  const rl::MemoryFit fit =
      rl::compare_memory(two_ranks(), eight_billion(), place, machine_of(4096 * kGiB), 80 * kGiB);
  CHECK_THAT(fit.error, Contains("of its device, which has 80.0 GiB"));
}

TEST_CASE("fine-tuning counts neither a reference nor a critic nor workers") {
  rl::Config config = two_ranks();
  config.algorithm.task = rl::Task::kSft;
  config.data.max_length = 512;
  const rl::RunMemory plain = rl::run_memory(config, half_billion(), {});
  config.algorithm.kl_coef = 0.1;
  config.algorithm.advantage.estimator = rl::AdvantageEstimator::kGae;
  const rl::RunMemory with_keys = rl::run_memory(config, half_billion(), {});
  CHECK(with_keys.rank.reference == 0);
  CHECK(with_keys.rank.critic == 0);
  CHECK(with_keys.on_host() == plain.on_host());
  CHECK(plain.workers == 0);
  CHECK(plain.published == 0);
}

TEST_CASE("of a base that cannot be packed nothing is left out, and no size is negative") {
  rl::Config config = two_ranks();
  config.parallel.ringattn_parallel_size = 1;  // a rank has all of the model
  config.model.dtype = rl::DType::kBFloat16;
  config.lora.rank = 16;
  config.lora.target_modules = "q_proj";
  engine::ModelConfig experts = eight_billion();
  experts.experts.count = 64;
  experts.experts.per_token = 4;
  experts.experts.intermediate_size = 768;
  experts.experts.normalise_weights = true;
  engine::ModelConfig latent = experts;
  latent.num_key_value_heads = latent.num_attention_heads;
  latent.latent = {.q_rank = 512, .kv_rank = 512, .nope_dim = 96, .rope_dim = 32, .value_dim = 96};
  latent.experts.router = engine::RouterKind::kSigmoid;
  // The first layers are dense, as DeepSeek-V3's.
  latent.blocks.assign(
      36, {engine::TokenMixerKind::kLatentAttention, engine::ChannelMixerKind::kExperts});
  latent.blocks[0].channel_mixer = latent.blocks[1].channel_mixer = engine::ChannelMixerKind::kMlp;
  for (const engine::ModelConfig& model : {experts, latent}) {
    config.lora.target_modules = model.has_latent_attention() ? "o_proj" : "q_proj";
    config.lora.base = rl::LoraBase::kNf4;
    const engine::MemoryEstimate packed = rl::memory_of_rank(config, model).policy;
    // Experts stay in bf16; everything else takes at least half a byte an element.
    int64_t of_experts = 0;
    for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
      for (const auto& specs : engine::DecoderLayer(model, layer).experts_specs()) {
        for (const engine::ParamSpec& spec : specs) {
          of_experts += spec.numel() * 2;
        }
      }
    }
    CHECK(packed.weights > of_experts);
    for (const int64_t part : {packed.weights, packed.moments, packed.gradients, packed.gathered,
                               packed.activations, packed.working, packed.logits}) {
      CHECK(part >= 0);
    }
    config.lora.base = rl::LoraBase::kModel;
    CHECK(packed.weights < rl::memory_of_rank(config, model).policy.weights);
  }
}
