// Comparison of the ranks of a run before they train. Ranks on several machines may have been
// started with different recipes, files or programs; training would then go wrong without an error.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/trainer/run_ranks.h"
#include "rl/trainer/training_failed.h"
#include "sp/mesh/communicator.h"
#include "sp/mesh/rendezvous.h"

namespace ringside::rl {

struct RankFact {
  std::string name;
  std::string value;
  // Only ranks with the same group compare the value, and each group may lack the fact.
  std::string group = {};
};
using RankFacts = std::vector<RankFact>;

// The ranks differ. Every rank throws it, with the same text.
class RanksDiffer : public TrainingFailed {
 public:
  using TrainingFailed::TrainingFailed;
};

// The keys that must be equal on all ranks, with their values. Left out are:
// - paths, because machines may keep files in different places (source_facts() compares contents);
// - train.threads, because machines may have different cores;
// - bridge.*, which rank 0 alone uses, and log.level, log.progress and log.openmetrics, which
//   change only what a process prints or serves.
RankFacts configuration_facts(Config config);

// Contents of the files that every rank reads (source_fingerprints()).
RankFacts source_facts(const Config& config);

// Hash of the loaded parameters, moments left out. Its group is the part of the model that the rank
// holds, so that ranks of a sharded model compare equal parts only. Packed matrices (lora.base) are
// left out, too: each rank packs them from files that source_facts() compares. Not collective.
// Blocks: until the parameters are on the host and hashed.
RankFact weights_fact(const std::string& name, const engine::ModelRunner& model);

// One sentence for each fact that differs, e.g. "optimizer.learning_rate: rank 0 has 0.001, rank 1
// has 0.01". of_ranks: the facts of each rank, in rank order.
std::vector<std::string> differences_of_ranks(const std::vector<RankFacts>& of_ranks);

// The texts of all ranks, in rank order. A text holds no zero byte.
// Collective over: the world.
// Blocks: until all ranks have called.
std::vector<std::string> gather_texts(const std::string& mine, sp::Communicator& world);

// Collective over: the world.
// Blocks: until all ranks have called.
// Throws: RanksDiffer on every rank if any fact differs.
void check_ranks_agree(const RankFacts& mine, sp::Communicator& world);

// The same before the ranks have connected their groups. `name` serves once in the lifetime of the
// store.
// Throws: RanksDiffer; std::runtime_error that names the ranks that have not come in time.
void check_ranks_agree(const RankFacts& mine, const sp::GroupRendezvous& rendezvous,
                       const std::string& name, int64_t rank, int64_t size);

// Compares what the ranks have loaded: the checkpoint of run_dir to resume from, the policy's
// weights, and what `more` returns, which may be empty. Collective over: the world. Blocks: as
// weights_fact().
// Throws: RanksDiffer on every rank.
void check_loaded(const RunRanks& ranks, const std::filesystem::path& run_dir,
                  const engine::ModelRunner& policy, const std::function<RankFacts()>& more);

}  // namespace ringside::rl
