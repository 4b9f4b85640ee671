// Attention and passed states of packed documents in one process: local_attention.h for models with
// gated delta nets.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/runner/sequence_parallel_delta.h"
#include "tests/support/local_attention.h"

namespace ringside::test {

class LocalHybrid final : public engine::AttentionBackend {
 public:
  // config: with gated delta nets. lengths: as of LocalAttention.
  LocalHybrid(const engine::ModelConfig& config, const std::vector<int64_t>& lengths)
      : attention_(lengths), delta_(prepared(config, lengths), nothing(), nothing()) {}
  engine::RecurrentBackend* recurrent() override { return &delta_; }
  at::Tensor attend(const engine::AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v) override {
    return attention_.attend(spec, q, k, v);
  }

 private:
  static std::shared_ptr<sp::Communicator> nothing() { return sp::make_single_rank_communicator(); }
  static std::shared_ptr<const engine::PreparedState> prepared(
      const engine::ModelConfig& config, const std::vector<int64_t>& lengths) {
    return std::make_shared<const engine::PreparedState>(
        std::make_shared<const sp::StatePlan>(
            sp::plan_state(sp::SequenceLayout(lengths, 1, 1), config.delta_net.shape, 0)),
        at::kCPU);
  }

  LocalAttention attention_;
  engine::SequenceParallelDelta delta_;
};

}  // namespace ringside::test
