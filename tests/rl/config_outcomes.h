// Outcomes of a configuration: what the code that reads it makes of it, as text. Two configurations
// that differ in an outcome differ in a key that has an effect.
#pragma once

#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::test {

using Words = std::vector<std::string>;

// A file or folder that configurations may name: model, reference, critic (models with a tokenizer
// of one token a character), train.jsonl, other.jsonl, keys.jsonl, adapters.jsonl, chat.jsonl,
// sft.jsonl, sft2.jsonl, schema.json, key.
std::string input_file(const std::string& name);

// Training on recorded rollouts.
std::string recorded(const rl::Config& config);
// Supervised fine-tuning.
std::string fine_tuned(const rl::Config& config);
// Learning from pairs.
std::string preferred(const rl::Config& config);
// A trainer and an embedded worker, live over the bridge: the last values of the named metrics,
// which no timing changes.
std::string live(const rl::Config& config, const std::vector<std::string>& names);
// The same, of a run that replaces groups: how many it refilled.
std::string refilled(const rl::Config& config);
// The same: versions of weights and their encoding.
std::string weights_sent(const rl::Config& config);
// The order and the seeds of the samples that a worker draws.
std::string jobs(const rl::Config& config);
// Sampled by our own generator.
std::string sampled(const rl::Config& config);
// What the rewards say of some completions.
std::string scored(const rl::Config& config);
// The trainer's endpoint.
std::string endpoint(const rl::Config& config);
// The worker's endpoint.
std::string worker_side(const rl::Config& config);
// The client of an inference server.
std::string server_client(const rl::Config& config);
// The mesh that the ranks are arranged in.
std::string layout(const rl::Config& config);
// What collate() makes its plans with.
std::string sequence_plan(const rl::Config& config);
// How rank 0's model is cut over ranks and between device and host.
std::string sharding(const rl::Config& config);
// The kernels that the model's products have.
std::string kernels_of_products(const rl::Config& config);
// The choices about activations that the model has taken.
std::string activations(const rl::Config& config);

}  // namespace ringside::test
