#include "rl/sft.h"

#include <algorithm>
#include <filesystem>

#include "engine/tokenizer/tokenizer.h"
#include "rl/data/data_order.h"
#include "rl/data/text_data.h"
#include "rl/data/training_batch.h"
#include "rl/step_metrics.h"
#include "sp/layout/range.h"

namespace ringside::rl {
namespace {

struct TokenizedExample {
  std::vector<int64_t> ids;
  int64_t prompt_tokens = 0;
};

// The completion ends with the model's end-of-sequence token; one is added where the text does not bring it.
std::vector<TokenizedExample> tokenize(const Config& config, const engine::ModelConfig& model) {
  const auto tokenizer = engine::Tokenizer::load(std::filesystem::path(config.model.path) / "tokenizer.json");
  const auto& eos = model.eos_token_ids;
  std::vector<TokenizedExample> examples;
  for (const SftExample& text : read_sft_examples(config.data.sft)) {
    TokenizedExample example;
    example.ids = tokenizer.encode(text.prompt);
    example.prompt_tokens = static_cast<int64_t>(example.ids.size());
    const auto completion = tokenizer.encode(text.completion);
    example.ids.insert(example.ids.end(), completion.begin(), completion.end());
    if (!eos.empty() && std::find(eos.begin(), eos.end(), example.ids.back()) == eos.end()) {
      example.ids.push_back(eos.front());
    }
    if (example.prompt_tokens < 1) {
      throw std::runtime_error(config.data.sft + ": example " + std::to_string(examples.size() + 1) +
                               " has an empty prompt; the first completion token would have nothing to follow");
    }
    examples.push_back(std::move(example));
  }
  return examples;
}

// The documents of one optimizer step, each completion token weighted 1 / (all completion tokens of the step).
std::vector<sp::Document> make_documents(const std::vector<const TokenizedExample*>& examples) {
  int64_t tokens = 0;
  for (const TokenizedExample* example : examples) {
    tokens += static_cast<int64_t>(example->ids.size()) - example->prompt_tokens;
  }
  std::vector<sp::Document> documents;
  for (const TokenizedExample* example : examples) {
    documents.push_back(make_scored_document(example->ids, example->prompt_tokens,
                                             1.0 / static_cast<double>(std::max<int64_t>(1, tokens))));
  }
  return documents;
}

}  // namespace

void train_sft(TrainingRun& run) {
  const Config& config = run.config();
  const auto examples = tokenize(config, run.decoder().config());
  DataOrder order(static_cast<int64_t>(examples.size()), static_cast<uint64_t>(config.seed), config.data.shuffle);
  const int64_t batch_size = config.train.batch_size;
  while (run.state().step < run.steps()) {
    std::vector<UpdateResult> updates;
    int64_t tokens = 0;
    for (int64_t b = 0; b < config.train.num_mini_batches; ++b) {
      const sp::Range part = sp::even_part(batch_size, config.train.num_mini_batches, b);
      std::vector<const TokenizedExample*> chosen;
      for (int64_t i = part.begin; i < part.end; ++i) {
        chosen.push_back(&examples[order.at(run.state().step * batch_size + i)]);
        tokens += static_cast<int64_t>(chosen.back()->ids.size());
      }
      updates.push_back(run.update(run.collate(make_documents(chosen)), sft_loss));
    }
    Metrics metrics = update_metrics(updates);
    metrics.emplace_back("num_tokens", static_cast<double>(tokens));
    run.finish_step(std::move(metrics), updates);
  }
  run.finish();
}

}  // namespace ringside::rl
