#include "engine/runner/micro_batch_attention.h"

#include <utility>

#include "engine/device/device_backend.h"
#include "engine/runner/overlapped_ulysses.h"
#include "engine/runner/sequence_parallel_attention.h"
#include "engine/runner/sequence_parallel_delta.h"

namespace ringside::engine {

std::unique_ptr<AttentionBackend> micro_batch_attention(const sp::MicroBatch& batch,
                                                        const DeviceBatch& on_device,
                                                        const sp::ProcessGroups& groups,
                                                        const Decoder& decoder) {
  // Device and dtype of q, k and v.
  const at::TensorOptions wire = decoder.context().compute_options();
  const auto kernels =
      device_backend(wire.device().type()).attention_kernels(decoder.context().products);
  WindowContexts contexts;
  for (const sp::WindowPlan& plan : batch.plans) {
    contexts[plan.window] = {kernels->prepare(plan.plan, wire), groups.tensors(sp::axes::kUlysses),
                             groups.tensors(sp::axes::kRing)};
  }
  if (batch.state_plan != nullptr) {
    return std::make_unique<SequenceParallelAttention>(
        std::move(contexts),
        std::make_shared<SequenceParallelDelta>(
            std::make_shared<const PreparedState>(batch.state_plan, wire.device()),
            groups.tensors(sp::axes::kUlysses), groups.tensors(sp::axes::kRing)));
  }
  if (batch.async_ulysses && has_plain_weights(decoder)) {
    return std::make_unique<OverlappedUlysses>(std::move(contexts), on_device.share_positions_S);
  }
  return std::make_unique<SequenceParallelAttention>(std::move(contexts));
}

}  // namespace ringside::engine
