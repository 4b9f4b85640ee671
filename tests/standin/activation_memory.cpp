// Memory of long sequences, for tools/bench/long/activation_memory.py. Prints JSON, one object a
// line.
//
// Usage: activation_memory measured TOKENS RING ULYSSES
//          one document of TOKENS tokens, forward and backward on the stand-in: bytes of rank 0
//        activation_memory largest GIB
//          for a Qwen3-0.6B: the most tokens of a document that fit into GIB a rank, by the
//          estimate that `ringside check` prints
//        activation_memory fits MIB
//          the same for a small model, and the bytes that a pass of that length takes on the
//          stand-in
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "rl/config/load.h"
#include "rl/data/training_batch.h"
#include "rl/setup/memory_of_rank.h"
#include "tests/standin/measured_pass.h"

namespace {

using namespace ringside;
using engine::Recompute;
using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kDeadline{600};

// Qwen3-0.6B's shape over 16, with fewer layers and words: heads are twice as wide as the hidden
// size, and the MLP three times.
engine::ModelConfig small_model() {
  engine::ModelConfig config;
  config.vocab_size = 512;
  config.hidden_size = 64;
  config.intermediate_size = 192;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 16;
  config.max_position_embeddings = 1 << 20;
  config.attention.qk_norm = true;
  config.tie_word_embeddings = true;
  return config;
}

engine::ModelConfig qwen3_600m() {
  engine::ModelConfig config;
  config.vocab_size = 151936;
  config.hidden_size = 1024;
  config.intermediate_size = 3072;
  config.num_hidden_layers = 28;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  config.max_position_embeddings = 1 << 24;
  config.attention.qk_norm = true;
  config.tie_word_embeddings = true;
  return config;
}

std::vector<sp::Document> one_document(int64_t tokens, int64_t vocab) {
  std::vector<int64_t> ids(tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    ids[i] = (7 * i + 1) % vocab;
  }
  return {rl::make_scored_document(std::move(ids), 1)};
}

void print(const Json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void print_measured(int64_t tokens, int64_t ring, int64_t ulysses) {
  const engine::ModelConfig model = small_model();
  const standin::PassLayout layout{{1, ring, ulysses}, {}};
  const auto pass = standin::measure_pass(model, at::kFloat, one_document(tokens, model.vocab_size),
                                          layout, kDeadline);
  print({{"tokens", tokens},
         {"ring", ring},
         {"ulysses", ulysses},
         {"held_bytes", pass.held - pass.before},
         {"peak_bytes", pass.peak - pass.before},
         {"reports", pass.reports}});
}

// The largest number for which fits(number) holds; 0 when it does not hold for 1.
template <class Fits>
int64_t largest(const Fits& fits) {
  int64_t low = 0, high = 1;
  while (high < (int64_t{1} << 32) && fits(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > std::max<int64_t>(1, low / 1024)) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

struct Setting {
  const char* name;
  std::vector<std::string> words;
};

const std::vector<Setting> kSettings{
    {"all on the device, each rank a whole copy", {"parallel.cp_fsdp_mode=none"}},
    {"all on the device, each rank a whole copy, recompute full",
     {"parallel.cp_fsdp_mode=none", "model.recompute=full"}},
    {"sharded", {}},
    {"sharded, recompute selective", {"model.recompute=selective"}},
    {"sharded, recompute full", {"model.recompute=full"}},
    {"sharded, recompute full, activations offloaded",
     {"model.recompute=full", "model.offload_activations=true"}},
    {"optimizer on the host", {"optimizer.offload=full"}},
    {"optimizer on the host, recompute selective",
     {"optimizer.offload=full", "model.recompute=selective"}},
    {"optimizer on the host, recompute full", {"optimizer.offload=full", "model.recompute=full"}},
    {"optimizer on the host, recompute selective, activations offloaded",
     {"optimizer.offload=full", "model.recompute=selective", "model.offload_activations=true"}},
    {"optimizer on the host, recompute full, activations offloaded",
     {"optimizer.offload=full", "model.recompute=full", "model.offload_activations=true"}},
    {"optimizer on the host, recompute full in MLP tiles, activations offloaded",
     {"optimizer.offload=full", "model.recompute=full", "model.offload_activations=true",
      "model.mlp_tile_tokens=4096"}}};

const std::vector<std::pair<int64_t, int64_t>> kRingUlysses{{1, 1}, {2, 1}, {4, 1},
                                                            {1, 2}, {1, 4}, {2, 2}};

// The policy alone: no reference, no critic.
rl::Config config_of(const Setting& setting, int64_t ring, int64_t ulysses) {
  std::vector<std::string> words{"model.dtype=bfloat16",
                                 "algorithm.kl_coef=0",
                                 "model.logit_chunk_mb=256",
                                 "parallel.ringattn_parallel_size=" + std::to_string(ring),
                                 "parallel.ulysses_parallel_size=" + std::to_string(ulysses),
                                 "parallel.data_parallel_replicate_size=1"};
  for (const std::string& word : setting.words) {
    // One rank has nothing to share; the key is refused there.
    if (ring * ulysses > 1 || !word.starts_with("parallel.cp_fsdp_mode")) {
      words.push_back(word);
    }
  }
  return rl::load_config_or_throw({}, words);
}

void print_largest(double gib) {
  const engine::ModelConfig model = qwen3_600m();
  const auto budget = static_cast<int64_t>(gib * (1 << 30));
  for (const Setting& setting : kSettings) {
    for (const auto& [ring, ulysses] : kRingUlysses) {
      rl::Config config = config_of(setting, ring, ulysses);
      const auto memory = [&](int64_t tokens) {
        config.train.tokens_per_micro_batch = tokens;
        return rl::memory_of_rank(config, model, c10::Device(c10::kCUDA));
      };
      const auto states = [](const engine::MemoryEstimate& m) {
        return m.weights + m.moments + m.gradients + m.gathered;
      };
      const int64_t tokens = largest([&](int64_t t) { return memory(t).policy.peak() <= budget; });
      // Beside weights, moments and gradients, which a bigger model or more shards change.
      const int64_t beside = largest([&](int64_t t) {
        const engine::MemoryEstimate m = memory(t).policy;
        return m.peak() - states(m) <= budget;
      });
      const rl::RankMemory at_most = memory(std::max<int64_t>(tokens, 1));
      print({{"setting", setting.name},
             {"ring", ring},
             {"ulysses", ulysses},
             {"tokens", tokens},
             {"states_bytes", states(at_most.policy)},
             {"host_bytes", at_most.host},
             {"tokens_beside_states", beside}});
    }
  }
}

// The longest document that the estimate lets into `mib`, and what it takes.
void print_fits(double mib) {
  const engine::ModelConfig model = small_model();
  const auto budget = static_cast<int64_t>(mib * (1 << 20));
  const auto device = standin::device(0);
  // Chunks of logits are small beside a layer, as those of a large model are.
  const auto keeping = [](Recompute recompute, bool offload = false, int64_t tile = 0) {
    return engine::ActivationOptions{recompute, offload, tile, int64_t{1} << 20};
  };
  constexpr auto kP2p = sp::RingImpl::kP2p;
  for (const standin::PassLayout& layout : std::vector<standin::PassLayout>{
           {{1, 1, 1}, keeping(Recompute::kNone)},
           {{1, 1, 1}, keeping(Recompute::kFull, true)},
           {{1, 2, 1}, keeping(Recompute::kSelective)},
           {{1, 1, 2}, keeping(Recompute::kNone), kP2p, 3},
           {{1, 2, 2}, keeping(Recompute::kFull), kP2p, 3},
           {{1, 4, 1}, keeping(Recompute::kFull, true), kP2p, 3, true},
           {{1, 2, 1}, keeping(Recompute::kFull, true, 256), kP2p, 3, true}}) {
    const engine::ComputeContext context(at::kFloat, device);
    const int64_t tokens = largest([&](int64_t t) {
      const sp::Mesh mesh(layout.mesh, 0);
      sp::SequenceOptions options;
      const sp::HeadShape heads{model.num_attention_heads, model.num_key_value_heads,
                                model.head_dim};
      const auto batches =
          sp::collate(one_document(t + 1, model.vocab_size), mesh, {heads, t + 1, options});
      const engine::PassShape shape =
          standin::pass_shape(batches.at(0), model, layout, mesh, context.compute_options());
      return engine::estimate_memory(model, context, shape).peak() <= budget;
    });
    const auto pass = standin::measure_pass(
        model, at::kFloat, one_document(tokens, model.vocab_size), layout, kDeadline);
    print({{"ring", layout.mesh.ring},
           {"ulysses", layout.mesh.ulysses},
           {"recompute", layout.activations.recompute == Recompute::kNone        ? "none"
                         : layout.activations.recompute == Recompute::kSelective ? "selective"
                                                                                 : "full"},
           {"offload_activations", layout.activations.offload},
           {"mlp_tile_tokens", layout.activations.mlp_tile_tokens},
           {"sharded", layout.stage > 0},
           {"optimizer_on_host", layout.optimizer_on_host},
           {"tokens", tokens},
           {"budget_bytes", budget},
           {"predicted_bytes", pass.predicted.peak()},
           {"measured_bytes", pass.peak},
           {"reports", pass.reports}});
  }
}

int run(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "measured" && argc == 5) {
    print_measured(std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]));
  } else if (what == "largest" && argc == 3) {
    print_largest(std::atof(argv[2]));
  } else if (what == "fits" && argc == 3) {
    print_fits(std::atof(argv[2]));
  } else {
    std::fprintf(
        stderr, "usage: activation_memory measured TOKENS RING ULYSSES | largest GIB | fits MIB\n");
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "activation_memory: %s\n", error.what());
    return 1;
  }
}
