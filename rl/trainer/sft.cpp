#include "rl/trainer/sft.h"

#include <algorithm>
#include <filesystem>

#include "engine/tokenizer/tokenizer.h"
#include "rl/data/data_order.h"
#include "rl/data/sft_examples.h"
#include "rl/step/column_tensors.h"
#include "rl/trainer/step_metrics.h"
#include "sp/layout/range.h"

namespace ringside::rl {
namespace {

// One optimizer step's examples.
struct SftBatch {
  std::vector<sp::Document> documents;
  StepColumns columns;  // weight: each learned token's is 1 / (all learned tokens of the step)
  int64_t tokens = 0;
};

SftBatch make_batch(const std::vector<const TokenizedExample*>& examples) {
  SftBatch batch;
  int64_t learned = 0;
  for (const TokenizedExample* example : examples) {
    batch.documents.push_back(make_sft_document(*example));
    batch.tokens += static_cast<int64_t>(example->ids.size());
    learned += example->learned_tokens();
  }
  batch.columns.weight.assign(learned, 1.0 / static_cast<double>(std::max<int64_t>(1, learned)));
  return batch;
}

UpdateResult update(TrainingRun& run, const SftBatch& batch) {
  const LocalBatch local{run.collate(batch.documents), 0};
  const at::ScalarType dtype = column_dtype(run.decoder().compute_dtype());
  return run.update(local, batch.columns, [&](std::size_t input, const engine::HeadOutput& output) {
    const at::Tensor weight_n =
        read_column(batch.columns.weight, local.micro_batches[input], local.first_token, dtype);
    return sft_loss(output.logprobs_n, output.entropy_n, weight_n);
  });
}

}  // namespace

void train_sft(TrainingRun& run) {
  const Config& config = run.config();
  std::vector<TokenizedExample> examples;
  run.on_every_rank([&] {
    const auto tokenizer =
        engine::Tokenizer::load(std::filesystem::path(config.model.path) / "tokenizer.json");
    examples = tokenize_examples(config, tokenizer, run.decoder().config().eos_token_ids);
  });
  DataOrder order(static_cast<int64_t>(examples.size()), static_cast<uint64_t>(config.seed),
                  config.data.shuffle);
  const int64_t batch_size = config.train.batch_size;
  while (!run.is_over()) {
    std::vector<UpdateResult> updates;
    int64_t tokens = 0;
    for (int64_t b = 0; b < config.train.num_mini_batches; ++b) {
      const sp::Range part = sp::even_part(batch_size, config.train.num_mini_batches, b);
      std::vector<const TokenizedExample*> chosen;
      for (int64_t i = part.begin; i < part.end; ++i) {
        chosen.push_back(&examples[order.at(run.state().step * batch_size + i)]);
      }
      const SftBatch batch = make_batch(chosen);
      updates.push_back(update(run, batch));
      tokens += batch.tokens;
    }
    Metrics metrics = update_metrics(updates);
    metrics.emplace_back("num_tokens", static_cast<double>(tokens));
    run.finish_step(std::move(metrics), updates);
  }
  run.finish();
}

}  // namespace ringside::rl
