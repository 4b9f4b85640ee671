// Attention backend of training: runs each layer's attention over the sequence-parallel group, by
// the micro-batch's plan for the layer's window.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "engine/nn/attention_backend.h"
#include "engine/nn/recurrent_backend.h"
#include "sp/attention/attention.h"

namespace ringside::engine {

// Contexts of a micro-batch's plans, by window. Their groups, rows and heads are the same.
using WindowContexts = std::map<int64_t, sp::AttentionContext>;

// The context of the layers with this window.
// Throws: c10::Error when there is no plan for the window.
const sp::AttentionContext& context_of(const WindowContexts& contexts, int64_t window);

// Collective over: the contexts' groups.
// Throws: attend(): as sp::attention() and context_of().
class SequenceParallelAttention final : public AttentionBackend {
 public:
  // recurrent: of layers that pass a state; null: there are none.
  explicit SequenceParallelAttention(WindowContexts contexts,
                                     std::shared_ptr<RecurrentBackend> recurrent = nullptr,
                                     std::shared_ptr<sp::KeptResults> kept = nullptr);

  RecurrentBackend* recurrent() override { return recurrent_.get(); }

  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override;
  std::unique_ptr<AttentionBackend> keeping(
      const std::shared_ptr<sp::KeptResults>& kept) const override;

 private:
  WindowContexts contexts_;
  std::shared_ptr<RecurrentBackend> recurrent_;
  std::shared_ptr<sp::KeptResults> kept_;
};

}  // namespace ringside::engine
