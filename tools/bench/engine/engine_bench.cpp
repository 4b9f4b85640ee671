// Bench of the engine: a training step of a sharded model against a replicated one, with and
// without prefetch, offload and recomputation; and forward and backward over packed documents, for
// beside_transformers.py. Prints one JSON object per line.
//
// Usage: bench_engine sharding [repetitions]
//        bench_engine packed MODEL_DIR LENGTH,LENGTH,... [repetitions]
// Ranks are threads of this process over shared memory, two in all. Repetitions of all variants
// alternate; the median is reported.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "engine/io/hf_directory.h"
#include "engine/params/sharding.h"
#include "engine/runner/model_runner.h"
#include "sp/batch/collator.h"
#include "tools/bench/rank_bench.h"

namespace {

using namespace ringside;
using bench::RankBench;

constexpr int kThreads = 2;  // in all
const sp::Axes kShard = sp::axes::fsdp(sp::CpFsdpMode::kAll);
const sp::Axes kReplicas = sp::axes::without_fsdp(sp::CpFsdpMode::kAll);

struct Variant {
  std::string name;
  int64_t shard = 2;
  int64_t stage = 3;
  bool prefetch = true;
  engine::Recompute recompute = engine::Recompute::kNone;
  bool host_moments = false;
  bool host_master = false;
};

const std::vector<Variant> kVariants{
    {"replicated", 1},
    {"replicated, recompute full", 1, 3, true, engine::Recompute::kFull},
    {"replicated, recompute selective", 1, 3, true, engine::Recompute::kSelective},
    {"zero 1", 2, 1},
    {"zero 2", 2, 2},
    {"zero 3", 2, 3},
    {"zero 3, no prefetch", 2, 3, false},
    {"zero 3, recompute full", 2, 3, true, engine::Recompute::kFull},
    {"zero 3, no prefetch, recompute full", 2, 3, false, engine::Recompute::kFull},
    {"zero 3, offload moments", 2, 3, true, engine::Recompute::kNone, true},
    {"zero 3, offload full", 2, 3, true, engine::Recompute::kNone, false, true},
};

engine::ModelConfig bench_model() {
  engine::ModelConfig config;
  config.vocab_size = 8192;
  config.hidden_size = 384;
  config.intermediate_size = 1024;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  config.attention.qk_norm = true;
  config.tie_word_embeddings = true;
  return config;
}

std::vector<sp::Document> documents_of(const std::vector<int64_t>& lengths, int64_t vocab) {
  std::vector<sp::Document> documents;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    sp::Document document;
    for (int64_t i = 0; i < lengths[d]; ++i) {
      document.ids.push_back((7 * i + 13 * static_cast<int64_t>(d) + 1) % vocab);
      if (i > 0) {
        document.entries.add(i - 1, document.ids.back());
      }
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

// Model, inputs and optimizer of one rank.
struct Trained {
  Trained(const engine::ModelConfig& config, std::unique_ptr<engine::Decoder> decoder,
          const std::vector<sp::Document>& documents, int64_t budget, const sp::Mesh& mesh,
          const sp::ProcessGroups& groups)
      : runner(std::make_unique<engine::LanguageModel>(std::move(decoder)), groups,
               engine::AdamWOptions{}),
        batches(
            sp::collate(documents, mesh,
                        {{config.num_attention_heads, config.num_key_value_heads, config.head_dim},
                         budget,
                         {}})) {
    for (const sp::MicroBatch& batch : batches) {
      inputs.push_back({&batch, at::ones({batch.num_entries()})});
    }
  }
  void train() {
    runner.train(inputs, [](const engine::HeadOutput& output, auto) {
      return output.logprobs_n.sum() * -1e-4;
    });
  }

  engine::ModelRunner runner;
  std::vector<sp::MicroBatch> batches;
  std::vector<engine::ModelInput> inputs;
};

RankBench::Setup step_of(const Variant& variant) {
  return [variant](const sp::Mesh& mesh, const sp::ProcessGroups& groups) -> RankBench::Body {
    engine::ComputeContext context(at::kFloat);
    context.sharding = std::make_shared<const engine::Sharding>(engine::Sharding{
        groups.tensors(kShard), groups.tensors(kReplicas), variant.stage, variant.prefetch});
    context.host_moments = variant.host_moments;
    context.host_master = variant.host_master;
    auto decoder = std::make_unique<engine::Decoder>(bench_model(), context);
    decoder->init_random(1, 0.02);
    decoder->set_activation_options({variant.recompute});
    auto trained = std::make_shared<Trained>(
        bench_model(), std::move(decoder),
        documents_of(std::vector<int64_t>(8, 256), bench_model().vocab_size), 512, mesh, groups);
    return [trained] {
      trained->train();
      trained->runner.step(1e-6, 1.0);
    };
  };
}

void measure_sharding(int repetitions) {
  std::vector<std::unique_ptr<RankBench>> benches;
  for (const Variant& variant : kVariants) {
    const sp::MeshShape shape{.dp_replicate = 2 / variant.shard, .dp_shard = variant.shard};
    benches.push_back(std::make_unique<RankBench>(shape, kThreads, step_of(variant),
                                                  std::vector<sp::Axes>{kShard, kReplicas}));
    benches.back()->run();  // warm-up
  }
  std::vector<std::vector<double>> seconds(kVariants.size());
  for (int r = 0; r < repetitions; ++r) {
    for (std::size_t v = 0; v < kVariants.size(); ++v) {
      seconds[v].push_back(benches[v]->run());
    }
  }
  for (std::size_t v = 0; v < kVariants.size(); ++v) {
    const nlohmann::ordered_json line{
        {"what", "a step of 2048 tokens on 2 ranks"},
        {"variant", kVariants[v].name},
        {"seconds", bench::median(seconds[v])},
        {"of_replicated", bench::median(seconds[v]) / bench::median(seconds[0])}};
    std::printf("%s\n", line.dump().c_str());
  }
}

void measure_packed(const std::string& model, const std::vector<int64_t>& lengths,
                    int repetitions) {
  int64_t tokens = 0;
  for (const int64_t length : lengths) {
    tokens += length;
  }
  RankBench one({}, kThreads, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    auto decoder = std::make_unique<engine::Decoder>(engine::load_decoder(model, at::kFloat));
    const engine::ModelConfig config = decoder->config();
    auto trained = std::make_shared<Trained>(
        config, std::move(decoder), documents_of(lengths, config.vocab_size), tokens, mesh, groups);
    return RankBench::Body([trained] { trained->train(); });
  });
  one.run();  // warm-up
  std::vector<double> seconds;
  for (int r = 0; r < repetitions; ++r) {
    seconds.push_back(one.run());
  }
  const nlohmann::ordered_json line{{"what", "forward and backward"},
                                    {"tokens", tokens},
                                    {"documents", lengths.size()},
                                    {"seconds", bench::median(seconds)}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // its map is not made for ranks as threads
  if (argc >= 2 && std::strcmp(argv[1], "sharding") == 0) {
    measure_sharding(argc > 2 ? std::atoi(argv[2]) : 5);
    return 0;
  }
  if (argc >= 4 && std::strcmp(argv[1], "packed") == 0) {
    std::vector<int64_t> lengths;
    std::istringstream text(argv[3]);
    for (std::string length; std::getline(text, length, ',');) {
      lengths.push_back(std::stoll(length));
    }
    measure_packed(argv[2], lengths, argc > 4 ? std::atoi(argv[4]) : 3);
    return 0;
  }
  std::fprintf(stderr,
               "usage: bench_engine sharding [REPETITIONS] | packed MODEL LENGTHS [REPETITIONS]\n");
  return 2;
}
