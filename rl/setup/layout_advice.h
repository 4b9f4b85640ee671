// Layouts that fit a stated memory: what else the same ranks could do, and what it would cost.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/layers/model_config.h"
#include "rl/config/config.h"
#include "rl/setup/memory_of_rank.h"
#include "sp/plan/device_speeds.h"

namespace ringside::rl {

// Bytes that a rank sends in an optimizer step of `micro_batches` full micro-batches, by
// collective. Attention's are those of the plans of micro-batches of the longest samples, on the
// rank that sends the most; the others do not depend on the samples.
struct StepTraffic {
  int64_t gather = 0;          // weights of sharded units
  int64_t reduce_scatter = 0;  // gradients over a shard
  int64_t all_reduce = 0;      // gradients over copies of the model, or over all ranks
  int64_t attention = 0;
  int64_t tensor = 0;   // rows of hidden states between tensor-parallel ranks
  int64_t experts = 0;  // rows to and from other ranks' experts, if each gets equally many
  int64_t micro_batches = 0;

  int64_t total() const {
    return gather + reduce_scatter + all_reduce + attention + tensor + experts;
  }
};

// All but attention's bytes, for a number of micro-batches.
StepTraffic state_traffic(const Config& config, const engine::ModelConfig& model,
                          int64_t micro_batches);

// `config` has its context-parallel size factored and its replicas fixed. The number of full
// micro-batches is that of the largest mini-batch of the longest samples.
StepTraffic step_traffic(const Config& config, const engine::ModelConfig& model);

// The traffic in one line, in GiB.
std::string describe(const StepTraffic& traffic);

// What layouts are compared for.
struct TargetDevice {
  c10::Device device = c10::Device(c10::kCPU);  // a kind of device, which need not be here
  sp::DeviceSpeeds speeds;
};

// Seconds of an optimizer step by a device's speeds. They rank layouts and predict no run.
struct StepTime {
  double computing = 0.0;
  double between_ranks = 0.0;
  double to_host = 0.0;  // beyond what the computing hides

  double total() const { return computing + between_ranks + to_host; }
};

// One way to run the same micro-batch on the same ranks.
struct LayoutOption {
  Config config;      // with the keys of the option set
  RankMemory memory;  // of a rank
  StepTime time;
};

// `config` itself, as step_traffic() takes it.
LayoutOption layout_option(const Config& config, const engine::ModelConfig& model,
                           const TargetDevice& target);

// Every option without tensor parallelism or with config's, for sequence-parallel size,
// recomputation, offload, ZeRO stage and optimizer offload at config's number of ranks, the
// cheapest first.
std::vector<LayoutOption> layout_options(const Config& config, const engine::ModelConfig& model,
                                         const TargetDevice& target);

// The chosen layout, the cheapest options that fit `memory` bytes, and which one to take and why.
std::vector<std::string> describe_options(const Config& config, const engine::ModelConfig& model,
                                          const TargetDevice& target, int64_t memory);

// The device that a configuration is planned for, which need not be here: the speeds are those of
// sp.device_speeds. Where that is empty and model.device is not cpu, they are those of this
// machine's device, or of an H100 if it has none.
// Throws: as device_speeds().
TargetDevice planned_device(const Config& config);

// describe_options() for a configuration as it was read and its planned_device(). Reads
// model.path/config.json. memory: bytes of a device.
// Throws: as load_model_config(), device_speeds() and factor_context_parallel().
std::vector<std::string> advise_layout(const Config& config, int64_t memory);

// Bytes of "80GiB", "512MiB", "80GB" or a number of bytes, from 1 to 2^60.
// Throws: std::invalid_argument naming the text.
int64_t bytes_of_text(std::string_view text);

}  // namespace ringside::rl
