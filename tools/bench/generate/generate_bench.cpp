// Bench of the built-in generator: completions of a Hugging Face directory's model, all of the same
// length. Prints one JSON object: tokens a second (the median), the seconds of each repetition and
// of the first tokens, and the peak of resident memory. Linked for CUDA it is bench_gpu_generate.
//
// Usage: bench_generate MODEL_DIR [--device cpu|cuda] [--dtype float32|bfloat16] [--prompts N]
// [--samples N]
//          [--prompt-tokens N] [--new-tokens N] [--temperature T] [--top-p P] [--rows N]
//          [--threads N] [--repetitions N]
// Prompt i is made of the ids (7 t + 13 i + 1) mod 1000 at its places t. The first completion of
// each prompt is printed with --print.
#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/device/device_backend.h"
#include "engine/generate/generator.h"
#include "engine/io/hf_directory.h"
#include "engine/models/decoder.h"

namespace {

using namespace ringside::engine;

struct Options {
  std::string model;
  std::string device = "cpu", dtype = "float32";
  int64_t prompts = 64, samples = 1, prompt_tokens = 64, new_tokens = 64;
  int64_t rows = 0;
  double temperature = 0, top_p = 1;
  int threads = 2, repetitions = 3;
  bool print = false;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::vector<std::vector<int64_t>> make_prompts(const Options& options) {
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t i = 0; i < options.prompts * options.samples; ++i) {
    std::vector<int64_t>& prompt = prompts.emplace_back();
    for (int64_t t = 0; t < options.prompt_tokens; ++t) {
      prompt.push_back((7 * t + 13 * (i / options.samples) + 1) % 1000);
    }
  }
  return prompts;
}

void run(const Options& options) {
  at::set_num_threads(options.threads);
  const DeviceChoice chosen = choose_device(options.device, 0);
  TORCH_CHECK(chosen.error.empty(), chosen.error);
  ComputeContext context(options.dtype == "float32" ? at::kFloat : at::kBFloat16, chosen.device);
  WeightStorage storage;  // as a worker keeps them: constants in the compute dtype
  storage.frozen = true;
  Decoder decoder(load_model_config(options.model), context, storage);
  load_weights(options.model, decoder);
  const auto prompts = make_prompts(options);
  SamplingParams params{.temperature = options.temperature,
                        .top_p = options.top_p,
                        .max_new_tokens = options.new_tokens};
  nlohmann::json line{{"seconds", nlohmann::json::array()}};
  std::vector<double> rates;
  for (int i = 0; i <= options.repetitions; ++i) {  // the first one warms up
    const auto begin = std::chrono::steady_clock::now();
    const auto completions = generate(decoder, prompts, params, {.max_rows = options.rows});
    const double seconds = seconds_since(begin);
    if (i == 0) {
      for (int64_t p = 0; options.print && p < options.prompts; ++p) {
        line["completions"].push_back(completions[p * options.samples].ids);
      }
      continue;
    }
    line["seconds"].push_back(seconds);
    rates.push_back(static_cast<double>(prompts.size()) * options.new_tokens / seconds);
  }
  std::sort(rates.begin(), rates.end());
  line["tokens_per_s"] = rates[rates.size() / 2];
  params.max_new_tokens = 1;
  const auto begin = std::chrono::steady_clock::now();
  generate(decoder, prompts, params, {.max_rows = options.rows});
  line["first_tokens_s"] = seconds_since(begin);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  line["peak_gib"] = static_cast<double>(usage.ru_maxrss) / (1 << 20);
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Bench of the built-in generator");
  app.add_option("model", options.model)->required();
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--prompts", options.prompts);
  app.add_option("--samples", options.samples);
  app.add_option("--prompt-tokens", options.prompt_tokens);
  app.add_option("--new-tokens", options.new_tokens);
  app.add_option("--temperature", options.temperature);
  app.add_option("--top-p", options.top_p);
  app.add_option("--rows", options.rows);
  app.add_option("--threads", options.threads);
  app.add_option("--repetitions", options.repetitions);
  app.add_flag("--print", options.print);
  CLI11_PARSE(app, argc, argv);
  run(options);
}
