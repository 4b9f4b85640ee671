// Bench of sampling: time of a batch of completions on one thread, with the small model of quick
// runs.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "engine/generate/generator.h"

namespace {

using namespace ringside::engine;

Decoder small_decoder() {
  ModelConfig config;
  config.vocab_size = 48;
  config.hidden_size = 128;
  config.intermediate_size = 384;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 32;
  config.attention.qk_norm = true;
  config.tie_word_embeddings = true;
  Decoder decoder(config, at::kFloat);
  decoder.init_random(1, 0.05);
  return decoder;
}

void generate_256_completions(benchmark::State& state) {
  at::set_num_threads(1);
  const Decoder decoder = small_decoder();
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t i = 0; i < 256; ++i) {
    prompts.push_back({1, 2, 3, i / 8 % 48, i / 8 % 7, 5, 6, 7, 8, 9});
  }
  const SamplingParams params{.max_new_tokens = state.range(0)};
  int64_t tokens = 0;
  for (auto _ : state) {
    for (const Completion& completion : generate(decoder, prompts, params)) {
      tokens += static_cast<int64_t>(completion.ids.size());
    }
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}
BENCHMARK(generate_256_completions)->Arg(40)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
