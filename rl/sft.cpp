#include "rl/sft.h"

#include <algorithm>
#include <filesystem>

#include "engine/tokenizer/tokenizer.h"
#include "rl/data/data_order.h"
#include "rl/sft_examples.h"
#include "rl/step_metrics.h"
#include "sp/layout/range.h"

namespace ringside::rl {
namespace {

// The documents of one optimizer step, each learned token weighted 1 / (all learned tokens of the step).
std::vector<sp::Document> make_documents(const std::vector<const TokenizedExample*>& examples) {
  int64_t tokens = 0;
  for (const TokenizedExample* example : examples) {
    tokens += example->learned_tokens();
  }
  std::vector<sp::Document> documents;
  for (const TokenizedExample* example : examples) {
    documents.push_back(make_sft_document(*example, 1.0 / static_cast<double>(std::max<int64_t>(1, tokens))));
  }
  return documents;
}

}  // namespace

void train_sft(TrainingRun& run) {
  const Config& config = run.config();
  std::vector<TokenizedExample> examples;
  run.on_every_rank([&] {
    const auto tokenizer = engine::Tokenizer::load(std::filesystem::path(config.model.path) / "tokenizer.json");
    examples = tokenize_examples(config, tokenizer, run.decoder().config().eos_token_ids);
  });
  DataOrder order(static_cast<int64_t>(examples.size()), static_cast<uint64_t>(config.seed), config.data.shuffle);
  const int64_t batch_size = config.train.batch_size;
  while (!run.is_over()) {
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
