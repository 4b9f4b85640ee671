#include "rl/trainer/sft.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/eval_sets.h"
#include "rl/data/document_batches.h"
#include "rl/data/sft_file.h"
#include "rl/report/stage_times.h"
#include "rl/setup/image_input.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/step/column_tensors.h"
#include "rl/step/score_documents.h"
#include "rl/trainer/rank_agreement.h"
#include "rl/trainer/step_metrics.h"
#include "sp/batch/next_ids.h"
#include "sp/layout/range.h"

namespace ringside::rl {
namespace {

// One optimizer step's examples.
struct SftBatch {
  std::vector<sp::Document> documents;
  StepColumns columns;  // weight: each learned token's is 1 / (all learned tokens of the step)
  int64_t tokens = 0;
};

// image_merge: as of make_sft_document(). further: whether the layer that predicts a further token
// is trained.
SftBatch make_batch(std::span<const TokenizedExample> examples, int64_t image_merge, bool further) {
  SftBatch batch;
  int64_t learned = 0;
  for (const TokenizedExample& example : examples) {
    batch.documents.push_back(make_sft_document(example, image_merge));
    if (further) {
      sp::add_next_ids(batch.documents.back());
    }
    batch.tokens += static_cast<int64_t>(example.ids.size());
    learned += example.learned_tokens();
  }
  batch.columns.weight.assign(learned, 1.0 / static_cast<double>(std::max<int64_t>(1, learned)));
  return batch;
}

// Ends the run when the policy has diverged. Collective over: the world.
UpdateResult update(TrainingRun& run, const SftBatch& batch) {
  const LocalBatch local{run.policy().collate(batch.documents), 0};
  const auto loss = [](const engine::HeadOutput& output, const engine::Columns& columns,
                       Figures& figures) {
    return sft_loss(output.logprobs_n, output.entropy_n, columns["weight"], figures);
  };
  try {
    return run.policy().update(local, batch.columns, loss);
  } catch (const engine::Diverged& error) {
    run.diverged(error);
  }
}

// Documents of one held-out set.
class HeldOutDocuments {
 public:
  HeldOutDocuments(const Config& config, const RunRanks& ranks, const engine::ModelRunner& policy,
                   const engine::Tokenizer& tokenizer, EvalSet set)
      : config_(config),
        ranks_(ranks),
        policy_(policy),
        set_(std::move(set)),
        file_(set_.files, config, tokenizer, policy.decoder().config().eos_token_ids),
        size_(config.eval.max_prompts > 0 ? std::min(config.eval.max_prompts, file_.size())
                                          : file_.size()) {}

  std::string metric() const { return set_.metric("loss"); }
  const std::shared_ptr<RecordPixels>& pixels() const { return file_.pixels(); }

  // Mean negative log-likelihood of all learned tokens; the same on every rank.
  // Collective over: the world.
  double loss() {
    const ScoreOptions options{config_.train.tokens_per_micro_batch, sequence_options(config_.sp)};
    double sum = 0.0;
    int64_t tokens = 0;
    for (int64_t begin = 0; begin < size_; begin += config_.train.batch_size) {
      const int64_t end = std::min(size_, begin + config_.train.batch_size);
      std::vector<sp::Document> documents;
      ranks_.on_every([&] { documents = read(begin, end); });
      for (const std::vector<double>& logprobs :
           score_documents(policy_, documents, ranks_.mesh(), ranks_.comms(), options)) {
        for (const double logprob : logprobs) {
          sum -= logprob;
          ++tokens;
        }
      }
    }
    if (tokens == 0) {
      throw std::runtime_error(set_.key + ": no document of " + set_.files +
                               " is left to evaluate");
    }
    return sum / static_cast<double>(tokens);
  }

 private:
  std::vector<sp::Document> read(int64_t begin, int64_t end) {
    std::vector<sp::Document> documents;
    for (int64_t i = begin; i < end; ++i) {
      if (const auto read = file_.read(i); read.example) {
        documents.push_back(make_sft_document(*read.example, file_.image_merge()));
      }
    }
    return documents;
  }

  const Config& config_;
  const RunRanks& ranks_;
  const engine::ModelRunner& policy_;
  EvalSet set_;
  SftFile file_;
  int64_t size_;
};

// What a rank reads. All ranks open the files at the same time, however long that takes.
struct Data {
  std::optional<engine::Tokenizer> tokenizer;
  std::optional<SftBatches> batches;
  // Of eval_sets(), if eval.every is above 0.
  std::vector<std::unique_ptr<HeldOutDocuments>> held_out;
  int64_t image_merge = 0;  // as of SftFile

  // step: finished steps, whose examples are passed over. Lets the policy take the images of the
  // data. Collective over: the world.
  Data(const Config& config, const RunRanks& ranks, engine::ModelRunner& policy, int64_t step) {
    ranks.on_every([&] {
      tokenizer.emplace(
          engine::Tokenizer::load(std::filesystem::path(config.model.path) / "tokenizer.json"));
      auto file = std::make_unique<SftFile>(config.data.sft, config, *tokenizer,
                                            policy.decoder().config().eos_token_ids);
      const auto options = batch_options<SftFile>(config, file->size(), step);
      image_merge = file->image_merge();
      std::vector<std::shared_ptr<RecordPixels>> pixels{file->pixels()};
      const std::optional<ImageRules> rules = file->image_rules();
      batches.emplace(std::move(file), options);
      if (config.eval.every > 0) {
        for (EvalSet& set : eval_sets(config)) {
          held_out.push_back(std::make_unique<HeldOutDocuments>(config, ranks, policy, *tokenizer,
                                                                std::move(set)));
          pixels.push_back(held_out.back()->pixels());
        }
      }
      if (rules) {
        policy.take_images(
            image_input(any_of(std::move(pixels)), *rules, std::make_shared<engine::KeptRows>()));
      }
    });
  }
};

// The loss on each held-out set; the same on every rank.
// Collective over: the world.
Metrics held_out_losses(const Data& data, StageTimes& times) {
  Metrics metrics;
  for (const auto& documents : data.held_out) {
    metrics.emplace_back(documents->metric(),
                         times.time("evaluate", [&] { return documents->loss(); }));
  }
  return metrics;
}

// Collective over: the world.
void evaluate_before_training(TrainingRun& run, Data& data, StageTimes& times) {
  if (run.state().step > 0 || data.held_out.empty() || !run.config().eval.before_training) {
    return;
  }
  const Metrics losses = held_out_losses(data, times);
  if (run.ranks().is_main()) {
    run.report().write_first_evaluation(losses);
  }
}

// The metrics that an optimizer step's figures add nothing to.
Metrics step_metrics(const SftBatches::Step& step, const std::vector<UpdateResult>& updates) {
  Metrics metrics = updates.empty() ? Metrics{} : update_metrics(updates);
  metrics.emplace_back("sft/documents", static_cast<double>(step.examples.size()));
  metrics.emplace_back("sft/overlong", static_cast<double>(step.overlong));
  return metrics;
}

}  // namespace

void train_sft(TrainingRun& run) {
  StageTimes times;  // what follows take() counts in the next step
  const Config& config = run.config();
  engine::ModelRunner& policy = run.policy().runner();
  check_loaded(run.ranks(), run.run_dir(), policy, {});
  Data data(config, run.ranks(), policy, run.state().step);
  evaluate_before_training(run, data, times);
  while (!run.is_over()) {
    SftBatches::Step step;
    times.time("wait_data", [&] { run.ranks().on_every([&] { step = data.batches->next(); }); });
    const auto documents = static_cast<int64_t>(step.examples.size());
    std::vector<UpdateResult> updates;
    int64_t tokens = 0;
    for (int64_t b = 0; b < config.train.num_mini_batches; ++b) {
      const sp::Range part = sp::even_part(documents, config.train.num_mini_batches, b);
      if (part.begin == part.end) {
        continue;  // fewer documents than mini-batches are left
      }
      const SftBatch batch =
          make_batch(std::span(step.examples).subspan(part.begin, part.end - part.begin),
                     data.image_merge, config.model.mtp_loss_coef > 0);
      updates.push_back(times.time("train", [&] { return update(run, batch); }));
      tokens += batch.tokens;
    }
    Metrics metrics = step_metrics(step, updates);
    metrics.emplace_back("num_tokens", static_cast<double>(tokens));
    if (!data.held_out.empty() && (run.state().step + 1) % config.eval.every == 0) {
      for (auto& loss : held_out_losses(data, times)) {
        metrics.push_back(std::move(loss));
      }
    }
    for (auto& time : times.take()) {
      metrics.push_back(std::move(time));
    }
    times.time("save", [&] { return run.finish_step(std::move(metrics), updates); });
  }
  run.finish();
}

}  // namespace ringside::rl
