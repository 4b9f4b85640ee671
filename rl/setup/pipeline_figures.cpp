#include "rl/setup/pipeline_figures.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdio>
#include <variant>

#include "engine/models/pipeline.h"
#include "rl/config/batch_arithmetic.h"
#include "rl/report/byte_text.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"

namespace ringside::rl {
namespace {

int64_t rounded_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Messages that a rank sends in a pass.
int64_t sent_messages(const sp::PipelinePlan& plan, const sp::PipelineShape& shape, int64_t rank) {
  int64_t sent = 0;
  for (const sp::PipelineEvent& event : plan.events(rank)) {
    const auto* transfer = std::get_if<sp::StageTransfer>(&event);
    sent += transfer != nullptr && shape.rank_of(transfer->from_stage) == rank ? 1 : 0;
  }
  return sent;
}

std::string layers_of(const engine::Stage& stage) {
  std::string text = stage.embeds ? "embedding" : "";
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " and ") + part; };
  if (!stage.layers.empty()) {
    add(std::to_string(stage.layers.begin) + "-" + std::to_string(stage.layers.end - 1));
  }
  if (stage.scores) {
    add("head");
  }
  return text;
}

}  // namespace

int64_t full_micro_batches(const Config& config) {
  const std::vector<int64_t> documents = longest_documents(config);
  const int64_t ranks = std::max<int64_t>(1, config.parallel.data_parallel_replicate_size) *
                        config.parallel.data_parallel_shard_size;
  return std::max<int64_t>(1, rounded_up(batch_arithmetic(config).samples_per_mini_batch,
                                         ranks * static_cast<int64_t>(documents.size())));
}

PipelineFigures pipeline_figures(const Config& config, const engine::ModelConfig& model) {
  const ParallelConfig& parallel = config.parallel;
  const sp::PipelineShape shape = pipeline_shape(parallel);
  const engine::TypicalTokens typical = typical_tokens(config);
  PipelineFigures figures;
  figures.stages = engine::pipeline_stages(model, shape, typical);
  sp::PipelineOptions options;
  options.shape = shape;
  options.schedule = pipeline_schedule(parallel);
  options.warm_up = pipeline_warm_up(config);
  options.inputs = full_micro_batches(config);
  // Thousandths of all work, so that sums stay small.
  const sp::ModelParts parts = engine::model_parts(model, typical);
  for (const engine::Stage& stage : figures.stages) {
    int64_t work = stage.scores ? parts.head.work : 0;
    for (int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
      work += parts.layers[i].work;
    }
    const int64_t unit = std::max<int64_t>(1, work / 1'000'000);
    options.stage_cost.push_back({unit, unit, unit});
  }
  const sp::PipelinePlan plan = sp::plan_pipeline(options);
  // Rows of the tensor-parallel rank with the most, each of which sends its own.
  const int64_t rows =
      rounded_up(rounded_up(config.train.tokens_per_micro_batch, parallel.sequence_parallel_size()),
                 parallel.tensor_parallel_size);
  const int64_t message = rows * model.hidden_size *
                          static_cast<int64_t>(c10::elementSize(scalar_type(config.model.dtype)));
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    figures.idle = std::max(
        figures.idle, static_cast<double>(plan.idle(rank)) / static_cast<double>(plan.span()));
    figures.live = std::max(figures.live, plan.most_live(rank));
    figures.messages = std::max(figures.messages, sent_messages(plan, shape, rank) * message);
  }
  return figures;
}

std::string describe(const PipelineFigures& figures, const ParallelConfig& parallel) {
  std::string stages;
  for (const engine::Stage& stage : figures.stages) {
    stages += (stages.empty() ? "" : " | ") + layers_of(stage);
  }
  char idle[32];
  std::snprintf(idle, sizeof idle, "%.1f %%", 100.0 * figures.idle);
  return "pipeline: " + std::to_string(figures.stages.size()) + " stages on " +
         std::to_string(parallel.pipeline_parallel_size) + " ranks: layers " + stages +
         "; a rank is idle for up to " + idle + " of a full step's passes, holds up to " +
         std::to_string(figures.live) + " micro-batches between forward and backward, and sends " +
         byte_text(static_cast<double>(figures.messages)) + " to other stages";
}

}  // namespace ringside::rl
