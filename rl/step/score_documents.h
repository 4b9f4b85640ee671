// What a model says of whole documents, log-probs or values, computed over the mesh and returned in
// document order on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/algorithm/step_columns.h"
#include "sp/batch/collator.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

struct ScoreOptions {
  int64_t tokens_per_micro_batch = 0;
  sp::SequenceOptions sequence;
};

// The log-probs of each document's loss entries, in order. Without autograd. Every rank passes the
// same documents and gets the same result. temperature: of each loss entry of all documents in
// order; empty = 1. kept_sets: likewise; none = over the whole vocabulary. Documents with the field
// kRoutesField replay its routes. Throws: what sp::collate and routes_of throw. Collective over:
// the world.
std::vector<std::vector<double>> score_documents(
    const engine::ModelRunner& model, std::span<const sp::Document> documents, const sp::Mesh& mesh,
    const sp::ProcessGroups& comms, const ScoreOptions& options,
    std::vector<double> temperature = {}, TokenSets kept_sets = {});

// The same of a value model: the values at each document's entries.
std::vector<std::vector<double>> document_values(const engine::ModelRunner& model,
                                                 std::span<const sp::Document> documents,
                                                 const sp::Mesh& mesh,
                                                 const sp::ProcessGroups& comms,
                                                 const ScoreOptions& options);

}  // namespace ringside::rl
