// Backend of gated delta nets in training: states pass between the sequence-parallel ranks by the
// micro-batch's plan.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "engine/nn/causal_conv.h"
#include "engine/nn/delta_rule.h"
#include "engine/nn/recurrent_backend.h"
#include "sp/recurrent/state_passing.h"

namespace ringside::engine {

// A state plan with its tables on a device. Make one for a micro-batch and use it in every layer.
// Thread safety: immutable.
class PreparedState {
 public:
  // Blocks: until the tables are on the device.
  PreparedState(std::shared_ptr<const sp::StatePlan> plan, c10::Device device);

  const std::shared_ptr<const sp::StatePlan>& plan() const { return plan_; }
  const std::shared_ptr<const ConvTables>& conv() const { return conv_; }
  const std::shared_ptr<const ChunkTables>& chunks() const { return chunks_; }
  // Of the mapped runs alone, whose rows are mapped_rows(); null: there are none.
  const std::shared_ptr<const ChunkTables>& mapped() const { return mapped_; }
  const at::Tensor& mapped_rows() const { return mapped_rows_; }  // undefined: all rows in order
  const at::Tensor& sent_rows() const { return sent_rows_; }      // as in sp::StateContext

 private:
  // rows: of each run.
  void prepare_maps(const std::vector<sp::Range>& rows, TableUpload& tables, c10::Device device);

  std::shared_ptr<const sp::StatePlan> plan_;
  std::shared_ptr<const ConvTables> conv_;
  std::shared_ptr<const ChunkTables> chunks_, mapped_;
  at::Tensor mapped_rows_, sent_rows_;
};

// Keeps nothing for a recomputation: a layer that runs twice sends twice.
// Collective over: the groups.
// Throws: mix(): c10::Error when the layer's heads are not the plan's, and as sp/recurrent.
class SequenceParallelDelta final : public RecurrentBackend {
 public:
  // ulysses, ring: the groups that the plan was made for; kept until the graph is freed.
  SequenceParallelDelta(std::shared_ptr<const PreparedState> prepared,
                        std::shared_ptr<sp::Communicator> ulysses,
                        std::shared_ptr<sp::Communicator> ring);

  at::Tensor mix(int64_t layer, const GatedDelta& net) override;

 private:
  at::Tensor starts_of(const DeltaRows& rows) const;

  std::shared_ptr<const PreparedState> prepared_;
  sp::StateContext context_;
};

}  // namespace ringside::engine
