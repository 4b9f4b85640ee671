#include "rl/setup/sequence_parallel.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "engine/io/hf_directory.h"
#include "engine/layers/decoder_layer.h"
#include "engine/runner/collator_options.h"
#include "rl/config/task.h"
#include "rl/report/byte_text.h"
#include "rl/setup/device_speeds.h"
#include "rl/setup/layer_elements.h"
#include "sp/plan/method_choice.h"

namespace ringside::rl {
namespace {

int64_t element_bytes(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

sp::MethodQuery typical_micro_batch(const Config& config, const engine::ModelConfig& model) {
  sp::MethodQuery query;
  // Of the tensor-parallel rank with the most heads, the first one.
  const int64_t tensor = config.parallel.tensor_parallel_size;
  query.heads = engine::head_shape(model, {0, tensor});
  query.most_ulysses = engine::most_ulysses_ranks(model, tensor);
  query.document_lengths = longest_documents(config);
  query.num_ranks = config.parallel.sequence_parallel_size();
  query.options = sequence_options(config.sp).plan;
  // The layers that attend furthest: without a window, if there are any.
  const std::vector<int64_t> windows = distinct_windows(model);
  query.options.window = windows.front() == 0 ? 0 : windows.back();
  query.placement = config.sp.placement;
  query.element_bytes = element_bytes(config.model.dtype);
  query.speed = sp::rank_speed(device_speeds(config).speeds, query.element_bytes);
  return query;
}

// Seconds of a layer by one factoring: the mean over the model's layers.
struct LayerTime {
  sp::MethodCost method;     // of a layer that attends
  double mixing = 0.0;       // attention, or what passes a state, with what ranks send for it
  double gemms = 0.0;        // forward and backward, of a rank's tokens
  double projections = 0.0;  // those that the asynchronous form overlaps with its exchanges
  double seconds() const { return mixing + gemms; }
};

// Of the layers that pass a state: their products of chunks, and the heads that ranks exchange.
double state_seconds(const sp::MethodQuery& query, const engine::TokenMixer& mixer,
                     const sp::MethodCost& method, double tokens) {
  const engine::MixerWork work = mixer.work({.ring = method.ring,
                                             .ulysses = method.ulysses,
                                             .tokens = tokens,
                                             .element = static_cast<double>(query.element_bytes),
                                             .documents = query.document_lengths});
  const double rate =
      method.ulysses_crosses_nodes ? query.speed.node_bytes_per_s : query.speed.bytes_per_s;
  return 3 * work.products / query.speed.gemm_flops_per_s + work.sent / rate;
}

LayerTime layer_time(const sp::MethodQuery& query, const engine::ModelConfig& model,
                     const sp::MethodCost& method) {
  const auto tokens = static_cast<double>(
      std::accumulate(query.document_lengths.begin(), query.document_lengths.end(), int64_t{0}));
  const std::vector<engine::DecoderLayer> layers = engine::make_layers(model);
  double mixing = 0.0;
  for (const engine::DecoderLayer& layer : layers) {
    const engine::TokenMixer& mixer = layer.token_mixer();
    const double of_layer =
        mixer.flow().keys ? method.seconds : state_seconds(query, mixer, method, tokens);
    mixing += of_layer / static_cast<double>(layers.size());
  }
  const LayerElements elements = mean_layer_elements(model, layers);
  // Two FLOPs a weight and token forward, four backward; each of these three products reads the
  // weights, which is what takes the time when there are few tokens.
  const double rate =
      std::max(6 * tokens / static_cast<double>(query.num_ranks) / query.speed.gemm_flops_per_s,
               3 * static_cast<double>(query.element_bytes) / query.speed.memory_bytes_per_s);
  return {method, mixing, rate * elements.all(), rate * elements.token_mixer};
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", 1e3 * seconds);
  return text;
}

// "ulysses 4 x ring 2: 1.2 MiB a layer and rank, 0.3 ms predicted".
std::string cost_text(const sp::MethodCost& cost) {
  return "ulysses " + std::to_string(cost.ulysses) + " x ring " + std::to_string(cost.ring) + ": " +
         byte_text(static_cast<double>(cost.bytes)) + " a layer and rank, " +
         milliseconds(cost.seconds) + " predicted";
}

std::string advice_on_length(const LayerTime& shared, const LayerTime& alone) {
  if (shared.seconds() < alone.seconds()) {
    return "";
  }
  const int64_t ranks = shared.method.ulysses * shared.method.ring;
  return "advice: sequences are short for " + std::to_string(ranks) +
         " ranks: a layer of a full micro-batch is predicted to take " +
         milliseconds(shared.seconds()) + ", " + milliseconds(alone.seconds()) +
         " on one rank, because sending costs more than it saves; use fewer sequence-parallel "
         "ranks, more tokens in train.tokens_per_micro_batch, or data parallelism";
}

std::string advice_on_nodes(const LayerTime& shared, int64_t ranks_per_node) {
  const sp::MethodCost& method = shared.method;
  if (!method.ring_crosses_nodes && !method.ulysses_crosses_nodes) {
    return "";
  }
  const std::string axis = method.ring_crosses_nodes ? "ring" : "Ulysses";
  const double transfers = method.ring_crosses_nodes ? method.ring_seconds : method.ulysses_seconds;
  return "advice: the " + axis + " axis crosses nodes of " + std::to_string(ranks_per_node) +
         " ranks: its transfers are predicted to take " + milliseconds(transfers) +
         " a layer beside " + milliseconds(method.compute_seconds) +
         " of attention; keep parallel.ringattn_parallel_size x parallel.ulysses_parallel_size "
         "within a node, and use data parallelism between nodes";
}

bool can_overlap(const Config& config, const engine::ModelConfig& model, const LayerTime& shared) {
  return shared.method.ulysses > 1 && config.lora.rank == 0 &&
         config.parallel.tensor_parallel_size == 1 &&
         engine::supports(model, engine::Feature::kAsyncUlysses);
}

// What the asynchronous form can hide: all its exchanges overlap a projection, at best wholly.
double hidden_seconds(const LayerTime& shared) {
  return std::min(shared.method.ulysses_seconds, shared.projections);
}

bool overlap_pays(const LayerTime& shared) {
  return hidden_seconds(shared) > 0.05 * shared.seconds();
}

std::string advice_on_async(const Config& config, const engine::ModelConfig& model,
                            const LayerTime& shared) {
  if (!can_overlap(config, model, shared)) {
    return "";
  }
  const bool pays = overlap_pays(shared);
  const std::string figures = "the asynchronous form can hide at most " +
                              milliseconds(hidden_seconds(shared)) + " of a layer's " +
                              milliseconds(shared.seconds());
  const std::string value = pays ? "true" : "false";
  if (config.sp.async_ulysses == AsyncUlysses::kAuto) {
    return "sp.async_ulysses: auto is " + value + ": " + figures;
  }
  return pays == (config.sp.async_ulysses == AsyncUlysses::kTrue)
             ? ""
             : "advice: sp.async_ulysses: " + value + " is likely faster: " + figures;
}

// Replaces sp.async_ulysses auto by what the prediction says.
void settle_async_ulysses(Config& config) {
  if (config.sp.async_ulysses != AsyncUlysses::kAuto) {
    return;
  }
  config.sp.async_ulysses = AsyncUlysses::kFalse;
  if (config.parallel.ulysses_parallel_size == 1) {
    return;
  }
  const engine::ModelConfig model = engine::load_model_config(config.model.path);
  const sp::MethodQuery query = typical_micro_batch(config, model);
  for (const sp::MethodCost& cost : sp::rank_methods(query)) {
    const LayerTime shared = layer_time(query, model, cost);
    if (cost.ulysses == config.parallel.ulysses_parallel_size && overlap_pays(shared) &&
        can_overlap(config, model, shared)) {
      config.sp.async_ulysses = AsyncUlysses::kTrue;
    }
  }
}

void factor(Config& config) {
  auto& parallel = config.parallel;
  const int64_t size = parallel.context_parallel_size;
  if (size == 0) {
    return;
  }
  const engine::ModelConfig model = engine::load_model_config(config.model.path);
  for (const sp::MethodCost& cost : sp::rank_methods(typical_micro_batch(config, model))) {
    const SpMethod method = config.sp.method;
    if (method == SpMethod::kAuto || (method == SpMethod::kUlysses && cost.ulysses == size) ||
        (method == SpMethod::kRing && cost.ring == size)) {
      parallel.ulysses_parallel_size = cost.ulysses;
      parallel.ringattn_parallel_size = cost.ring;
      parallel.context_parallel_size = 0;
      return;
    }
  }
  throw std::invalid_argument(
      "sp.method ulysses: parallel.context_parallel_size " + std::to_string(size) +
      " exceeds the " + std::to_string(most_ulysses_ranks(model, parallel.tensor_parallel_size)) +
      " ranks that the model's heads allow; expected sp.method auto or "
      "ring");
}

}  // namespace

std::vector<int64_t> longest_documents(const Config& config) {
  const int64_t budget = config.train.tokens_per_micro_batch;
  const int64_t limit = longest_document(config);
  const int64_t longest = std::max<int64_t>(1, limit > 0 ? std::min(budget, limit) : budget);
  return std::vector<int64_t>(static_cast<std::size_t>(std::max<int64_t>(1, budget / longest)),
                              longest);
}

sp::MeshShape mesh_shape(const ParallelConfig& config) {
  return {.dp_replicate = std::max<int64_t>(1, config.data_parallel_replicate_size),
          .ring = config.ringattn_parallel_size,
          .ulysses = config.ulysses_parallel_size,
          .dp_shard = config.data_parallel_shard_size,
          .expert = config.expert_parallel_size,
          .pipeline = config.pipeline_parallel_size,
          .tensor = config.tensor_parallel_size};
}

sp::SequenceOptions sequence_options(const SpConfig& config) {
  sp::SequenceOptions options;
  options.plan.ring_impl = config.ring_impl;
  options.plan.ring_backward = config.ring_backward;
  options.plan.heads_k_stride = config.heads_k_stride;
  options.placement = config.placement;
  options.shared_prefix = config.shared_prefix;
  options.async_ulysses = config.async_ulysses == AsyncUlysses::kTrue;
  return options;
}

void factor_context_parallel(Config& config) {
  factor(config);
  settle_async_ulysses(config);
}

std::vector<std::string> describe_sequence_parallel(const Config& config) {
  std::vector<std::string> lines;
  if (config.parallel.sequence_parallel_size() == 1 || config.model.path.empty()) {
    return lines;
  }
  Config factored = config;
  factor_context_parallel(factored);
  const FoundSpeeds found = device_speeds(config);
  if (!found.notice.empty()) {
    lines.push_back(found.notice);
  }
  const engine::ModelConfig model = engine::load_model_config(config.model.path);
  sp::MethodQuery query = typical_micro_batch(config, model);
  LayerTime used;
  for (const sp::MethodCost& cost : sp::rank_methods(query)) {
    const bool is_used = cost.ulysses == factored.parallel.ulysses_parallel_size;
    lines.push_back(
        std::string(is_used ? "context parallel, used:     " : "context parallel, not used: ") +
        cost_text(cost) + " (speeds of " + found.speeds.name + ")");
    if (is_used) {
      used = layer_time(query, model, cost);
    }
  }
  query.num_ranks = 1;
  const LayerTime alone = layer_time(query, model, sp::rank_methods(query).front());
  for (std::string advice :
       {advice_on_length(used, alone), advice_on_nodes(used, found.speeds.ranks_per_node),
        advice_on_async(config, model, used)}) {
    if (!advice.empty()) {
      lines.push_back(std::move(advice));
    }
  }
  return lines;
}

}  // namespace ringside::rl
