#include "rl/preflight/run_memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>

#include "engine/generate/generator.h"
#include "engine/generate/page_pool.h"
#include "engine/layers/decoder_layer.h"
#include "engine/models/decoder_units.h"
#include "engine/models/sampling_panels.h"
#include "engine/runner/layers_memory.h"
#include "engine/runner/loading_memory.h"
#include "rl/config/adapter_names.h"
#include "rl/config/task.h"
#include "rl/report/byte_text.h"
#include "rl/sampling/prompt_sampler.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"
#include "rl/worker/worker_link.h"

namespace ringside::rl {
namespace {

// LibTorch, the tokenizer, buffers of the bridge. Measured: ranks and workers of a model of a few
// KiB take 147 to 154 MiB.
constexpr int64_t kProcess = int64_t{150} << 20;
// A run that needs more than this part of the memory is close to the limit: the figures are within
// 5 to 10 %, and other programs need some.
constexpr double kClose = 0.85;
// Measured with 150 million parameters: three blocks of shared memory (the newest version, the one
// that is being copied, one that a worker still reads), and what changed between two versions.
constexpr int64_t kPublishedCopies = 4;
// By a worker: the version that it verified, and the one that changes are applied to.
constexpr int64_t kReceivedCopies = 2;

std::string text_of_bytes(int64_t bytes) { return byte_text(static_cast<double>(bytes)); }

int64_t bytes_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// Bytes of a version of the weights.
int64_t version_bytes(const Config& config, const engine::ModelConfig& model) {
  const int64_t element = bytes_of(scalar_type(published_dtype(config)));
  if (config.lora.publish != LoraPublish::kAdapter) {
    return engine::elements(engine::decoder_specs(model)) * element;
  }
  const auto adapters = std::max<std::ptrdiff_t>(1, std::ssize(adapter_names(config.lora)));
  return adapters * element *
         engine::elements(engine::Adapters::factors(model, adapter_options(config.lora)));
}

// Keys and values of one token in all layers, in elements. A state does not grow; a
// layer with a window keeps less than this.
int64_t cached_elements(const engine::ModelConfig& model) {
  int64_t elements = 0;
  for (const engine::DecoderLayer& layer : engine::make_layers(model)) {
    const engine::TokenFlow flow = layer.token_mixer().flow();
    elements += flow.keys ? flow.keys->elements() : 0;
  }
  return elements;
}

// A rank's copy of the weights and moments that it saves while training goes on. Ranks that hold
// the same elements share the saving.
int64_t checkpoint_bytes(const Config& config, const engine::ModelConfig& model,
                         c10::Device device) {
  Config plain = config;  // where the state lives does not change its size
  plain.optimizer.offload = OptimizerOffload::kNone;
  plain.model.offload_parameters = false;
  const RankMemory rank = memory_of_rank(plain, model, device);
  const sp::Mesh mesh(mesh_shape(config.parallel), /*rank=*/0);
  const int64_t holders = config.parallel.world_size() / config.parallel.pipeline_parallel_size /
                          mesh.size(shard_axes(config.parallel).shard);
  // Two of three parts are moments; the critic's size has a fourth part, its gradients.
  return (rank.policy.moments / 2 * 3 + rank.critic / 4 * 3) / holders;
}

engine::WeightStorage sampled_storage(const Config& config) {
  return config.lora.publish == LoraPublish::kAdapter ? policy_storage(config)
                                                      : worker_storage(config);
}

// A worker's own copy of the policy.
int64_t worker_weights(const Config& config, const engine::ModelConfig& model) {
  const engine::ComputeContext context(scalar_type(config.model.dtype));
  return engine::loading_memory(model, context, sampled_storage(config), {}).peak;
}

// Copies of a worker's weights that its products read. Quantised weights have none.
int64_t packed_weights(const Config& config, const engine::ModelConfig& model) {
  const engine::ComputeContext context(scalar_type(config.model.dtype));
  return sampled_storage(config).projections ? 0 : engine::sampling_panel_bytes(model, context);
}

// Keys and values of so many completions, each in pages of its own behind its group's prompt.
int64_t cache_memory(const Config& config, const engine::ModelConfig& model, int64_t rows) {
  const RolloutConfig& rollout = config.rollout;
  const int64_t size = sampled_group_size(config), groups = (rows + size - 1) / size;
  const int64_t tokens = groups * rollout.max_prompt_tokens +
                         rows * (rollout.max_completion_tokens + engine::kPageTokens);
  const int64_t bytes = tokens * cached_elements(model) * bytes_of(scalar_type(config.model.dtype));
  return rollout.cache_mb > 0 ? std::min(bytes, rollout.cache_mb << 20) : bytes;
}

// An embedded worker's model that samples its share of a step: weights, cache, and the larger of
// the prompts' forward and the last tokens' draw.
int64_t sampling_memory(const Config& config, const engine::ModelConfig& model,
                        c10::Device device) {
  const int64_t compute = bytes_of(scalar_type(config.model.dtype));
  const RolloutConfig& rollout = config.rollout;
  const int64_t rows = std::min(samples_per_batch(config), kMostRows);
  const int64_t cache = cache_memory(config, model, rows);
  // The logits in fp32. Elsewhere than on the CPU also the log-probs, their exponentials and sums
  // of those, these in fp64.
  const int64_t of_token = compute + 4 + (device.is_cpu() ? 0 : 4 + 8 + 8);
  const int64_t draw = rows * model.vocab_size * of_token;
  const int64_t size = sampled_group_size(config);
  const int64_t prompts = std::min((rows + size - 1) / size * rollout.max_prompt_tokens,
                                   std::max(engine::kPrefillTokens, rollout.max_prompt_tokens));
  const int64_t prefill = prompts * (6 * model.hidden_size + 3 * model.intermediate_size) * compute;
  return worker_weights(config, model) + packed_weights(config, model) + cache +
         std::max(draw, prefill);
}

// A change of a configuration, and the key that it changes as "key=value".
struct Change {
  std::function<bool(Config&)> apply;  // false: nothing is left to change
  std::function<std::string(const Config&)> text;
};

// What a sample may have: no micro-batch can be smaller.
int64_t longest_sample(const Config& config) { return longest_document(config); }

bool shrink_micro_batch(Config& config) {
  const int64_t least = std::max<int64_t>(1024, longest_sample(config));
  const bool changes = config.train.tokens_per_micro_batch > least;
  config.train.tokens_per_micro_batch = std::min(config.train.tokens_per_micro_batch, least);
  return changes;
}

std::vector<Change> changes(bool has_device) {
  std::vector<Change> all;
  all.push_back({[](Config& c) {
                   const bool changes = c.model.recompute != Recompute::kFull;
                   c.model.recompute = Recompute::kFull;
                   return changes;
                 },
                 [](const Config&) { return std::string("model.recompute=full"); }});
  all.push_back({shrink_micro_batch, [](const Config& c) {
                   return "train.tokens_per_micro_batch=" +
                          std::to_string(c.train.tokens_per_micro_batch);
                 }});
  if (has_device) {
    all.push_back({[](Config& c) {
                     const bool changes = c.optimizer.offload != OptimizerOffload::kFull;
                     c.optimizer.offload = OptimizerOffload::kFull;
                     return changes;
                   },
                   [](const Config&) { return std::string("optimizer.offload=full"); }});
  }
  all.push_back({[](Config& c) {
                   const bool changes = c.lora.rank == 0;
                   c.lora.rank = changes ? 16 : c.lora.rank;
                   return changes;
                 },
                 [](const Config&) { return std::string("lora.rank=16"); }});
  all.push_back({[](Config& c) {
                   const bool changes = c.lora.rank > 0 && c.lora.base != LoraBase::kNf4;
                   c.lora.base = LoraBase::kNf4;
                   return changes;
                 },
                 [](const Config&) { return std::string("lora.base=nf4"); }});
  return all;
}

// Whether the model can have the adapters, or the packed base, that a change adds.
bool suits(const engine::ModelConfig& model, const LoraConfig& before, const LoraConfig& after) {
  const bool adds = before.rank == 0 && after.rank > 0;
  const bool packs = before.base != after.base;
  return (!adds || engine::supports(model, engine::Feature::kAdapters)) &&
         (!packs || engine::supports(model, engine::Feature::kPackedBase));
}

std::string advice(const std::vector<MemorySaving>& savings, int64_t bytes) {
  std::string text;
  for (const MemorySaving& saving : savings) {
    text += (text.empty() ? "with " : "; with ") + saving.keys + " it needs " +
            text_of_bytes(saving.bytes) + (saving.bytes <= bytes ? " and fits" : "");
  }
  const bool fits = !savings.empty() && savings.back().bytes <= bytes;
  return text + (fits ? ""
                      : std::string(text.empty() ? "" : "; ") +
                            "expected a smaller model, more ranks that share it on other "
                            "machines (parallel.data_parallel_shard_size), or more memory");
}

}  // namespace

RunMemory run_memory(const Config& config, const engine::ModelConfig& model,
                     const RunPlace& place) {
  RunMemory memory;
  memory.rank = memory_of_rank(config, model, place.device);
  memory.ranks = place.ranks > 0 ? place.ranks : config.parallel.world_size();
  memory.rank_on_host = kProcess + memory.rank.host +
                        checkpoint_bytes(config, model, place.device) +
                        (place.device.is_cpu() ? memory.rank.total() : 0);
  if (!samples_completions(config)) {
    return memory;
  }
  const int64_t version = version_bytes(config, model);
  memory.published = place.publishes ? kPublishedCopies * version : 0;
  if (!place.workers) {
    return memory;
  }
  memory.workers = config.rollout.num_workers;
  memory.worker_on_host = kProcess + kReceivedCopies * version;
  if (config.rollout.server == RolloutServer::kEmbedded) {
    memory.worker_model = sampling_memory(config, model, place.device);
    memory.worker_on_host += place.device.is_cpu() ? memory.worker_model : 0;
  } else {  // it checks the server with a copy of its own, on the host
    memory.worker_on_host += worker_weights(config, model);
  }
  return memory;
}

std::vector<MemorySaving> memory_savings(const Config& config, const engine::ModelConfig& model,
                                         const RunPlace& place, bool of_device, int64_t bytes) {
  std::vector<MemorySaving> savings;
  Config changed = config;
  std::string keys;
  for (const Change& change : changes(!place.device.is_cpu())) {
    Config next = changed;
    if (!change.apply(next) || !suits(model, changed.lora, next.lora)) {
      continue;
    }
    changed = next;
    if (!keys.empty()) {
      keys += " ";
    }
    keys += change.text(changed);
    const RunMemory memory = run_memory(changed, model, place);
    savings.push_back({keys, changed, of_device ? memory.on_device() : memory.on_host()});
    if (savings.back().bytes <= bytes) {
      break;
    }
  }
  return savings;
}

MemoryFit compare_memory(const Config& config, const engine::ModelConfig& model,
                         const RunPlace& place, const MachineMemory& machine,
                         int64_t device_bytes) {
  const RunMemory memory = run_memory(config, model, place);
  const int64_t usable = machine.usable();
  if (!place.device.is_cpu() && device_bytes > 0 && memory.on_device() > device_bytes) {
    return {"a rank" +
                std::string(memory.workers > 0 ? " and the embedded workers need" : " needs") +
                " about " + text_of_bytes(memory.on_device()) + " of its device, which has " +
                text_of_bytes(device_bytes) + "; " +
                advice(memory_savings(config, model, place, /*of_device=*/true, device_bytes),
                       device_bytes),
            ""};
  }
  if (usable == 0) {
    return {};
  }
  const std::string needs = "the run needs about " + text_of_bytes(memory.on_host()) +
                            " of this machine's memory (" + describe(memory) + "), which has " +
                            machine.text();
  if (memory.on_host() > usable) {
    return {needs + "; " +
                advice(memory_savings(config, model, place, /*of_device=*/false, usable), usable) +
                ". For another machine: `ringside check --memory SIZE`",
            ""};
  }
  const auto close = static_cast<int64_t>(kClose * static_cast<double>(usable));
  if (memory.on_host() > close || (machine.available > 0 && memory.on_host() > machine.available)) {
    return {"",
            needs + ", of which " + text_of_bytes(machine.available) +
                " are free now: it is close; " +
                advice(memory_savings(config, model, place, /*of_device=*/false, close), close)};
  }
  return {};
}

MemoryFit compare_with_this_machine(const Config& config, const engine::ModelConfig& model,
                                    RunPlace place) {
  Config factored = config;
  factor_context_parallel(factored);
  fix_replicas(factored.parallel, /*world=*/0);
  place.device = model_device(config, /*local_rank=*/0);
  return compare_memory(factored, model, place, machine_memory(), device_memory(place.device));
}

int64_t device_memory(c10::Device device) {
  if (device.is_cpu()) {
    return 0;
  }
  try {
    const c10::DeviceIndex index = device.has_index() ? device.index() : c10::DeviceIndex{0};
    return static_cast<int64_t>(at::getDeviceAllocator(device.type())->getMemoryInfo(index).second);
  } catch (const c10::Error&) {  // an allocator that does not tell
    return 0;
  }
}

std::string describe(const RunMemory& memory) {
  const auto several = [](int64_t count, const char* what, int64_t bytes) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s") + " of " +
           text_of_bytes(bytes);
  };
  std::string text = several(memory.ranks, "rank", memory.rank_on_host);
  if (memory.workers > 0) {
    text += ", " + several(memory.workers, "worker", memory.worker_on_host);
  }
  if (memory.published > 0) {
    text += ", published weights " + text_of_bytes(memory.published);
  }
  return text;
}

}  // namespace ringside::rl
