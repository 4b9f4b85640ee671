#include "rl/setup/layout_advice.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "engine/layers/decoder_layer.h"
#include "engine/models/decoder.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/layers_memory.h"
#include "rl/config/batch_arithmetic.h"
#include "rl/report/byte_text.h"
#include "rl/setup/device_speeds.h"
#include "rl/setup/layer_elements.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/pipeline_figures.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"
#include "sp/plan/method_choice.h"

namespace ringside::rl {
namespace {

// A layout fits if its peak is at most this part of the memory. The rest is for the device's own
// state and for fragmentation.
constexpr double kUsable = 0.9;
// Most options that are printed.
constexpr std::size_t kShown = 6;
// Bytes per second between a device and its host. Assumed.
constexpr double kHostLink = 25e9;
// A backward has this many times the FLOPs of its forward: of matrix products, of attention.
constexpr double kBackward = 2.0, kAttentionBackward = 2.5;

int64_t rounded_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string size_text(int64_t bytes) { return byte_text(static_cast<double>(bytes)); }

std::string in_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

// Elements of each unit, in the order of Decoder::units(), and how often a step uses it.
struct UnitUse {
  int64_t elements = 0;  // of all ranks together; of the tensor-parallel rank with the most
  int64_t gathers = 0;   // a micro-batch, at ZeRO stage 3
  int64_t sums = 0;      // of gradients, a micro-batch
  bool of_experts = false;
  bool is_whole = false;  // each tensor-parallel rank uses all of it
};

std::vector<UnitUse> unit_uses(const engine::ModelConfig& model, int64_t tensor_ranks) {
  const bool tied = model.tie_word_embeddings;
  const int64_t table = rounded_up(model.vocab_size, tensor_ranks) * model.hidden_size;
  // Layers and the head are gathered again for the backward. A tied embedding serves twice.
  std::vector<UnitUse> units{{table, tied ? 3 : 1, tied ? 2 : 1}};
  for (const engine::DecoderLayer& layer : engine::make_layers(model, {0, tensor_ranks})) {
    const engine::OwnElements own = engine::own_elements(layer.specs(), tensor_ranks);
    units.push_back({own.cut, 2, 1});
    if (tensor_ranks > 1) {
      units.push_back({own.whole, 2, 1, /*of_experts=*/false, /*is_whole=*/true});
    }
    for (const auto& specs : layer.experts_specs()) {
      units.push_back({engine::elements(specs), 2, 1, /*of_experts=*/true, /*is_whole=*/true});
    }
  }
  units.push_back({model.hidden_size, 1, 1, /*of_experts=*/false, /*is_whole=*/true});
  if (!tied) {
    units.push_back({table, 2, 1});
  }
  return units;
}

struct Ranks {
  int64_t shard = 1, copies = 1;
};

Ranks ranks_of(const ParallelConfig& parallel) {
  const sp::Mesh mesh(mesh_shape(parallel), /*rank=*/0);
  const ShardAxes axes = shard_axes(parallel);
  return {mesh.size(axes.shard), mesh.size(axes.replicas)};
}

// Of a unit, or of one rank's experts, which expert_ranks ranks hold between them.
Ranks ranks_of(const UnitUse& unit, const ParallelConfig& parallel) {
  const sp::Mesh mesh(mesh_shape(parallel), /*rank=*/0);
  const bool divides_experts = unit.of_experts && parallel.expert_parallel_size > 1;
  const ShardAxes axes = divides_experts ? expert_shard_axes(parallel)
                         : unit.is_whole ? whole_shard_axes(parallel)
                                         : shard_axes(parallel);
  return {mesh.size(axes.shard), mesh.size(axes.replicas)};
}

// Elements of a unit that one rank's group computes with; of the rank with most experts.
int64_t part_of(const UnitUse& unit, const ParallelConfig& parallel,
                const engine::ModelConfig& model) {
  if (!unit.of_experts) {
    return unit.elements;
  }
  const int64_t count = model.experts.count;
  return unit.elements / count * rounded_up(count, parallel.expert_parallel_size);
}

// Rows that a rank sends to other ranks' experts and back, and their gradients, in a micro-batch.
int64_t expert_row_bytes(const Config& config, const engine::ModelConfig& model, int64_t element) {
  const int64_t ranks = config.parallel.expert_parallel_size;
  const int64_t tokens =
      rounded_up(config.train.tokens_per_micro_batch, config.parallel.sequence_parallel_size());
  const int64_t passes = config.model.recompute == Recompute::kNone ? 2 : 3;
  int64_t bytes = 0;
  for (const engine::DecoderLayer& layer : engine::make_layers(model)) {
    const int64_t rows = tokens * layer.channel_mixer().routing().per_token * (ranks - 1) / ranks;
    bytes += passes * 2 * rows * model.hidden_size * element;
  }
  return bytes;
}

engine::RankGrid rank_grid(const Config& config, double element) {
  return {config.parallel.ringattn_parallel_size,
          config.parallel.ulysses_parallel_size,
          config.parallel.tensor_parallel_size,
          static_cast<double>(config.train.tokens_per_micro_batch),
          element,
          activation_options(config).recompute,
          longest_documents(config)};
}

// Bytes that a tensor rank sends in a micro-batch: of all layers, the embedding and the head, whose
// entries are at most its tokens.
double tensor_bytes(const Config& config, const engine::ModelConfig& model,
                    const std::vector<engine::DecoderLayer>& layers, double element) {
  engine::RankGrid grid = rank_grid(config, element);
  double bytes = 0.0;
  for (const engine::DecoderLayer& layer : layers) {
    bytes += engine::tensor_sent(layer.token_mixer().tensor_widths(), grid) +
             engine::tensor_sent(layer.channel_mixer().tensor_widths(), grid);
  }
  grid.recompute = engine::Recompute::kNone;
  return bytes + engine::tensor_sent({model.hidden_size, model.hidden_size}, grid);
}

// Of the token mixers of all layers, in one micro-batch.
engine::MixerWork mixer_work(const Config& config, const std::vector<engine::DecoderLayer>& layers,
                             double element) {
  const engine::RankGrid grid = rank_grid(config, element);
  engine::MixerWork all;
  for (const engine::DecoderLayer& layer : layers) {
    const engine::MixerWork work = layer.token_mixer().work(grid);
    all.products += work.products;
    all.attention += work.attention;
    all.sent += work.sent;
  }
  return all;
}

StepTime time_of(const Config& config, const engine::ModelConfig& model, const RankMemory& memory,
                 const TargetDevice& target) {
  const engine::ComputeContext context(scalar_type(config.model.dtype));
  const auto element = static_cast<double>(c10::elementSize(context.compute));
  const sp::RankSpeed speed = sp::rank_speed(target.speeds, static_cast<int64_t>(element));
  const auto bytes_per_s = [&](int64_t ranks) {
    const bool crosses = speed.ranks_per_node > 0 && ranks > speed.ranks_per_node;
    return crosses ? speed.node_bytes_per_s : speed.bytes_per_s;
  };
  const StepTraffic traffic = state_traffic(config, model, full_micro_batches(config));
  const auto m = static_cast<double>(traffic.micro_batches);
  const auto sp_ranks = static_cast<double>(config.parallel.sequence_parallel_size());
  const double tokens = static_cast<double>(config.train.tokens_per_micro_batch) / sp_ranks;
  const int64_t tensor = config.parallel.tensor_parallel_size;
  const std::vector<UnitUse> units = unit_uses(model, tensor);
  const double table = static_cast<double>(units.front().elements);  // of this tensor rank
  const std::vector<engine::DecoderLayer> layers = engine::make_layers(model);
  // Of the tensor rank with the most heads. Experts and matrices share their products alike.
  const std::vector<engine::DecoderLayer> own_layers = engine::make_layers(model, {0, tensor});
  const engine::MixerWork mixers = mixer_work(config, own_layers, element);
  const double dense = 2.0 * tokens / static_cast<double>(tensor) *
                           static_cast<double>(layers.size()) *
                           mean_layer_elements(model, layers).all() +
                       mixers.products;
  const bool recomputes = config.model.recompute != Recompute::kNone;
  const bool twice = config.model.recompute == Recompute::kFull;
  StepTime time;
  // The head's logits are computed again in its backward.
  const double products =
      dense * (1 + kBackward + (recomputes ? 1 : 0)) + 2.0 * tokens * table * (2 + kBackward);
  const double attended = mixers.attention * (1 + kAttentionBackward + (twice ? 1 : 0));
  time.computing = m * (products / speed.gemm_flops_per_s + attended / speed.flops_per_s);
  time.between_ranks =
      static_cast<double>(traffic.gather + traffic.reduce_scatter + traffic.all_reduce) /
          bytes_per_s(config.parallel.world_size()) +
      m * mixers.sent / bytes_per_s(config.parallel.sequence_parallel_size() * tensor) +
      m * tensor_bytes(config, model, own_layers, element) / bytes_per_s(tensor) +
      static_cast<double>(traffic.experts) / bytes_per_s(config.parallel.expert_parallel_size);
  if (!target.device.is_cpu()) {
    double mine = 0.0;  // elements that this rank stores
    for (const UnitUse& unit : units) {
      const Ranks ranks = ranks_of(unit, config.parallel);
      mine += static_cast<double>(part_of(unit, config.parallel, model)) /
              static_cast<double>(ranks.shard);
    }
    const auto activations = config.model.offload_activations
                                 ? 2.0 * m * static_cast<double>(memory.policy.host_activations)
                                 : 0.0;
    // Down and up: gradients and weights, or both moments.
    const double states = config.optimizer.offload == OptimizerOffload::kFull      ? 4.0 + element
                          : config.optimizer.offload == OptimizerOffload::kMoments ? 16.0
                                                                                   : 0.0;
    time.to_host =
        mine * states / kHostLink + std::max(0.0, activations / kHostLink - time.computing);
  }
  return time;
}

// Sizes of the sequence-parallel group that divide the ranks, with the tensor ranks of `chosen`.
std::vector<ParallelConfig> options_of_tensor_size(const ParallelConfig& chosen,
                                                   const engine::ModelConfig& model) {
  std::vector<ParallelConfig> options;
  const int64_t world =
      chosen.world_size() / chosen.tensor_parallel_size / chosen.pipeline_parallel_size;
  for (int64_t sp_size = 1; sp_size <= world; ++sp_size) {
    if (world % sp_size != 0) {
      continue;
    }
    ParallelConfig option = chosen;
    if (sp_size != chosen.sequence_parallel_size()) {
      int64_t ulysses = 1;
      const int64_t most = std::min(model.num_key_value_heads,
                                    engine::most_ulysses_ranks(model, chosen.tensor_parallel_size));
      for (int64_t u = 1; u <= std::min(sp_size, most); ++u) {
        ulysses = sp_size % u == 0 ? u : ulysses;
      }
      option.ulysses_parallel_size = ulysses;
      option.ringattn_parallel_size = sp_size / ulysses;
      option.data_parallel_shard_size = world / sp_size;
      option.data_parallel_replicate_size = 1;
    }
    const bool sharded = shard_axes(option).shard != sp::axes::kNone;
    for (const int64_t stage : {1, 2, 3}) {
      option.zero_stage = stage;
      if (sharded || stage == 3) {
        options.push_back(option);
      }
    }
  }
  return options;
}

// Those of the chosen tensor ranks, and those that use these as other ranks.
std::vector<ParallelConfig> parallel_options(const ParallelConfig& chosen,
                                             const engine::ModelConfig& model) {
  std::vector<ParallelConfig> options = options_of_tensor_size(chosen, model);
  if (chosen.tensor_parallel_size > 1) {
    ParallelConfig without = chosen;
    without.data_parallel_shard_size *= without.tensor_parallel_size;
    without.tensor_parallel_size = 1;
    const std::vector<ParallelConfig> more = options_of_tensor_size(without, model);
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

// The keys that an option may change, as words of a command line.
std::string words_of(const LayoutOption& option) {
  const Config& c = option.config;
  const ParallelConfig& p = c.parallel;
  std::string words;
  const auto add = [&](const char* key, const std::string& value) {
    words += std::string(words.empty() ? "" : " ") + key + "=" + value;
  };
  if (p.pipeline_parallel_size > 1) {
    add("parallel.pipeline_parallel_size", std::to_string(p.pipeline_parallel_size));
  }
  add("parallel.data_parallel_replicate_size", std::to_string(p.data_parallel_replicate_size));
  add("parallel.data_parallel_shard_size", std::to_string(p.data_parallel_shard_size));
  add("parallel.ringattn_parallel_size", std::to_string(p.ringattn_parallel_size));
  add("parallel.ulysses_parallel_size", std::to_string(p.ulysses_parallel_size));
  if (p.tensor_parallel_size > 1) {
    add("parallel.tensor_parallel_size", std::to_string(p.tensor_parallel_size));
  }
  if (p.expert_parallel_size > 1) {
    add("parallel.expert_parallel_size", std::to_string(p.expert_parallel_size));
  }
  if (ranks_of(p).shard > 1) {
    add("parallel.zero_stage", std::to_string(p.zero_stage));
  }
  add("model.recompute", std::string(to_string(c.model.recompute)));
  if (c.model.offload_activations) {
    add("model.offload_activations", "true");
  }
  if (c.optimizer.offload != OptimizerOffload::kNone) {
    add("optimizer.offload", std::string(to_string(c.optimizer.offload)));
  }
  return words;
}

std::string needs(const LayoutOption& option) {
  return size_text(option.memory.total()) + " a rank, " + size_text(option.memory.host) +
         " of host memory, " + in_seconds(option.time.total());
}

// Number of layers that attend with each window.
std::map<int64_t, int64_t> layers_by_window(const engine::ModelConfig& model) {
  std::map<int64_t, int64_t> layers;
  for (const engine::DecoderLayer& layer : engine::make_layers(model)) {
    if (const engine::TokenFlow flow = layer.token_mixer().flow(); !flow.state) {
      ++layers[flow.window];
    }
  }
  return layers;
}

}  // namespace

StepTraffic state_traffic(const Config& config, const engine::ModelConfig& model,
                          int64_t micro_batches) {
  const engine::ComputeContext context(scalar_type(config.model.dtype));
  const auto compute = static_cast<int64_t>(c10::elementSize(context.compute));
  const auto master = static_cast<int64_t>(c10::elementSize(context.master));
  const int64_t wire = config.parallel.reduce_dtype == DType::kBFloat16 ? 2 : master;
  const int64_t stage = config.parallel.zero_stage;
  StepTraffic traffic;
  traffic.micro_batches = micro_batches;
  for (const UnitUse& unit : unit_uses(model, config.parallel.tensor_parallel_size)) {
    const Ranks ranks = ranks_of(unit, config.parallel);
    const int64_t elements = part_of(unit, config.parallel, model);
    const int64_t mine = rounded_up(elements, ranks.shard);
    if (ranks.shard > 1) {
      const int64_t gathers = stage < 3 ? 1 : unit.gathers * traffic.micro_batches;
      const int64_t sums = stage == 1 ? 1 : unit.sums * traffic.micro_batches;
      traffic.gather += gathers * (ranks.shard - 1) * mine * compute;
      traffic.reduce_scatter += sums * (elements - mine) * wire;
    }
    traffic.all_reduce += 2 * (ranks.copies - 1) * mine * master / ranks.copies;
  }
  traffic.experts = traffic.micro_batches * expert_row_bytes(config, model, compute);
  const engine::TensorPlace tensor{0, config.parallel.tensor_parallel_size};
  traffic.tensor = traffic.micro_batches * static_cast<int64_t>(tensor_bytes(
                                               config, model, engine::make_layers(model, tensor),
                                               static_cast<double>(compute)));
  return traffic;
}

StepTraffic step_traffic(const Config& config, const engine::ModelConfig& model) {
  StepTraffic traffic = state_traffic(config, model, full_micro_batches(config));
  const ParallelConfig& parallel = config.parallel;
  if (parallel.sequence_parallel_size() == 1) {
    return traffic;
  }
  const sp::SequenceLayout layout(sp::SegmentForest::of_documents(longest_documents(config)),
                                  parallel.ringattn_parallel_size, parallel.ulysses_parallel_size,
                                  config.sp.placement);
  const sp::HeadShape heads = engine::head_shape(model, {0, parallel.tensor_parallel_size});
  const auto element = static_cast<int64_t>(c10::elementSize(scalar_type(config.model.dtype)));
  const int64_t forwards = config.model.recompute == Recompute::kFull ? 2 : 1;
  std::vector<int64_t> of_ranks(parallel.sequence_parallel_size(), 0);
  for (const auto& [window, layers] : layers_by_window(model)) {
    sp::PlanOptions options = sequence_options(config.sp).plan;
    options.window = window;
    const std::vector<sp::RankWork> works = sp::work_of_ranks(layout, heads, options);
    for (std::size_t rank = 0; rank < works.size(); ++rank) {
      const sp::Traffic& sent = works[rank].traffic;
      of_ranks[rank] += layers * (forwards * sp::forward_bytes(sent, element) +
                                  sp::backward_bytes(sent, element, std::max<int64_t>(4, element)));
    }
  }
  traffic.attention = traffic.micro_batches * *std::ranges::max_element(of_ranks);
  return traffic;
}

std::string describe(const StepTraffic& traffic) {
  return "sent by a rank in an optimizer step of " + std::to_string(traffic.micro_batches) +
         " full micro-batch" + (traffic.micro_batches == 1 ? "" : "es") + ": about " +
         size_text(traffic.total()) + ": gathered weights " + size_text(traffic.gather) +
         ", reduce-scattered gradients " + size_text(traffic.reduce_scatter) +
         ", all-reduced gradients " + size_text(traffic.all_reduce) + ", attention " +
         size_text(traffic.attention) +
         (traffic.tensor > 0 ? ", rows between tensor ranks " + size_text(traffic.tensor) : "") +
         (traffic.experts > 0 ? ", rows to and from experts " + size_text(traffic.experts) : "");
}

LayoutOption layout_option(const Config& config, const engine::ModelConfig& model,
                           const TargetDevice& target) {
  LayoutOption option{config, memory_of_rank(config, model, target.device), {}};
  option.time = time_of(config, model, option.memory, target);
  return option;
}

std::vector<LayoutOption> layout_options(const Config& config, const engine::ModelConfig& model,
                                         const TargetDevice& target) {
  std::vector<LayoutOption> options;
  Config c = config;
  for (const ParallelConfig& parallel : parallel_options(config.parallel, model)) {
    c.parallel = parallel;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      c.model.recompute = recompute;
      c.model.mlp_tile_tokens = recompute == Recompute::kNone ? 0 : config.model.mlp_tile_tokens;
      for (const bool offload : {false, true}) {
        c.model.offload_activations = offload;
        for (const OptimizerOffload states :
             {OptimizerOffload::kNone, OptimizerOffload::kMoments, OptimizerOffload::kFull}) {
          c.optimizer.offload = states;
          const bool moves = offload || states != OptimizerOffload::kNone;
          if ((offload && recompute == Recompute::kNone) || (moves && target.device.is_cpu())) {
            continue;
          }
          options.push_back(layout_option(c, model, target));
        }
      }
    }
  }
  std::stable_sort(
      options.begin(), options.end(),
      [](const LayoutOption& a, const LayoutOption& b) { return a.time.total() < b.time.total(); });
  return options;
}

std::vector<std::string> describe_options(const Config& config, const engine::ModelConfig& model,
                                          const TargetDevice& target, int64_t memory) {
  const auto usable = static_cast<int64_t>(kUsable * static_cast<double>(memory));
  const LayoutOption chosen = layout_option(config, model, target);
  const bool fits = chosen.memory.total() <= usable;
  std::vector<std::string> lines;
  lines.push_back("in " + size_text(memory) + " a rank, of which " + size_text(usable) +
                  " are used: the layout above " + (fits ? "fits" : "does not fit") + ": " +
                  needs(chosen));
  std::vector<LayoutOption> options = layout_options(config, model, target);
  const auto smallest = *std::min_element(options.begin(), options.end(),
                                          [](const LayoutOption& a, const LayoutOption& b) {
                                            return a.memory.total() < b.memory.total();
                                          });
  std::erase_if(options, [&](const LayoutOption& o) { return o.memory.total() > usable; });
  // The cheapest of each sequence-parallel size and recomputation.
  std::set<std::pair<int64_t, Recompute>> shown;
  for (const LayoutOption& option : options) {
    const auto kind =
        std::pair(option.config.parallel.sequence_parallel_size(), option.config.model.recompute);
    if (shown.size() < kShown && shown.insert(kind).second) {
      lines.push_back("fits: " + needs(option) + ": " + words_of(option));
    }
  }
  if (options.empty()) {
    lines.push_back("nothing fits; the least is " + needs(smallest) + ": " + words_of(smallest) +
                    ". Expected fewer train.tokens_per_micro_batch, a smaller "
                    "model.logit_chunk_mb, model.mlp_tile_tokens, or more ranks");
    return lines;
  }
  const LayoutOption& best = options.front();
  lines.push_back("recommended: " + words_of(best) + ": the cheapest of " +
                  std::to_string(options.size()) +
                  " layouts of these ranks that fit, by the speeds of " + target.speeds.name +
                  ": " + in_seconds(best.time.computing) + " computing, " +
                  in_seconds(best.time.between_ranks) + " between ranks, " +
                  in_seconds(best.time.to_host) + " to and from the host in an optimizer step");
  return lines;
}

TargetDevice planned_device(const Config& config) {
  TargetDevice target{c10::Device(c10::kCUDA), device_speeds(config).speeds};
  const bool cpu_speeds = target.speeds.name.find("CPU") != std::string::npos;
  if (config.model.device == DeviceKind::kCpu || (cpu_speeds && !config.sp.device_speeds.empty())) {
    target.device = c10::Device(c10::kCPU);
  } else if (cpu_speeds) {
    target.speeds = *sp::find_device("H100");
  }
  return target;
}

std::vector<std::string> advise_layout(const Config& config, int64_t memory) {
  Config factored = config;
  factor_context_parallel(factored);
  fix_replicas(factored.parallel, /*world=*/0);
  return describe_options(factored, load_model_config(config, config.model.path),
                          planned_device(config), memory);
}

int64_t bytes_of_text(std::string_view text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  const std::pair<std::string_view, double> units[] = {
      {"", 1.0},   {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0},
      {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9}};
  constexpr double kMost = 1152921504606846976.0;  // 2^60, 1 EiB
  for (const auto& [name, factor] : units) {
    const double bytes = number * factor;
    if (error == std::errc() && unit == name && bytes >= 1.0 && bytes <= kMost) {
      return static_cast<int64_t>(bytes);
    }
  }
  throw std::invalid_argument("is \"" + std::string(text) +
                              "\"; expected a memory size such as 80GiB, 512MiB or 80GB");
}

}  // namespace ringside::rl
