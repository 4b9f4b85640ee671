#include "engine/models/pipeline.h"

#include <algorithm>
#include <cmath>

#include "engine/layers/layer_work.h"

namespace ringside::engine {
namespace {

// Weights, gradients and both moments of a parameter in fp32.
constexpr int64_t kStateBytes = 16;
// balance_stages() wants less than 2^31 for all work together.
constexpr double kWorkUnits = 1e9;

// Query-key pairs of a token of a document, on average.
double pairs_of_token(const LayerWork& work, int64_t document) {
  const auto tokens = static_cast<double>(document);
  const auto window = static_cast<double>(*work.window);
  return *work.window > 0 && window < tokens ? window : (tokens + 1.0) / 2.0;
}

int64_t numel(const std::vector<ParamSpec>& specs) {
  int64_t sum = 0;
  for (const ParamSpec& spec : specs) {
    sum += spec.numel();
  }
  return sum;
}

}  // namespace

sp::ModelParts model_parts(const ModelConfig& config, const TypicalTokens& typical) {
  std::vector<double> work;
  sp::ModelParts parts;
  for (const DecoderLayer& layer : make_layers(config)) {
    const LayerWork of_layer = work_of(layer, config);
    work.push_back(
        of_layer.token +
        (of_layer.window ? of_layer.pair * pairs_of_token(of_layer, typical.document) : 0.0));
    int64_t elements = numel(layer.specs());
    for (const auto& specs : layer.experts_specs()) {
      elements += numel(specs);
    }
    parts.layers.push_back({0, elements * kStateBytes});
  }
  const int64_t table = config.vocab_size * config.hidden_size;
  const double head = 2.0 * static_cast<double>(table) * typical.entries;
  double all = head;
  for (const double of_layer : work) {
    all += of_layer;
  }
  const auto units = [&](double flops) {
    return static_cast<int64_t>(std::llround(flops / all * kWorkUnits));
  };
  for (std::size_t i = 0; i < work.size(); ++i) {
    parts.layers[i].work = units(work[i]);
  }
  parts.embedding = {0, table * kStateBytes};
  parts.head = {units(head), table * kStateBytes};
  parts.tied = config.tie_word_embeddings;
  return parts;
}

std::vector<Stage> pipeline_stages(const ModelConfig& config, const sp::PipelineShape& shape,
                                   const TypicalTokens& typical) {
  const sp::StageBalance balance = sp::balance_stages(model_parts(config, typical), shape.stages());
  std::vector<Stage> stages;
  for (std::size_t s = 0; s < balance.layers.size(); ++s) {
    stages.push_back(
        {.layers = balance.layers[s], .embeds = s == 0, .scores = s + 1 == balance.layers.size()});
  }
  return stages;
}

std::vector<Stage> pipeline_stages(const ModelConfig& config, const Pipeline* pipeline) {
  return pipeline == nullptr ? std::vector<Stage>{whole_stage(config)}
                             : pipeline_stages(config, pipeline->shape, pipeline->typical);
}

std::vector<Stage> own_stages(const ModelConfig& config, const Pipeline* pipeline) {
  const std::vector<Stage> all = pipeline_stages(config, pipeline);
  if (pipeline == nullptr) {
    return all;
  }
  std::vector<Stage> own;
  for (int64_t chunk = 0; chunk < pipeline->shape.stages_per_rank; ++chunk) {
    own.push_back(all.at(pipeline->shape.stage_of(pipeline->line->rank(), chunk)));
  }
  return own;
}

sp::PipelinePlan pipeline_plan(const sp::PipelineShape& shape, sp::PipelineSchedule schedule,
                               int64_t warm_up, int64_t inputs) {
  sp::PipelineOptions options;
  options.shape = shape;
  options.schedule = schedule;
  options.inputs = inputs;
  options.warm_up = warm_up;
  return sp::plan_pipeline(options);
}

}  // namespace ringside::engine
