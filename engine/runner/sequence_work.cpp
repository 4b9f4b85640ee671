#include "engine/runner/sequence_work.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/layers/decoder_layer.h"
#include "engine/runner/gradient_flow.h"
#include "engine/runner/tensor_traffic.h"

namespace ringside::engine {
namespace {

// Bytes that this rank sends for a token mixer in a forward and backward of a micro-batch, by its
// plan. A second forward runs again what passes a state; attention only when all is recomputed.
// has_backward: whether what it mixes has a gradient.
int64_t planned_bytes(const TokenFlow& flow, const sp::MicroBatch& batch, int64_t element,
                      Recompute recompute, bool has_backward) {
  const int64_t sums = std::max<int64_t>(4, element);
  if (flow.state && batch.state_plan == nullptr) {  // a tensor rank with none of its heads
    return 0;
  }
  if (flow.state) {
    const sp::StateTraffic& traffic = batch.state_plan->traffic;
    const int64_t forwards = recompute == Recompute::kNone ? 1 : 2;
    return forwards * sp::forward_bytes(traffic, element, sums) +
           (has_backward ? sp::backward_bytes(traffic, element, sums) : 0);
  }
  const sp::Traffic& traffic = batch.plan(flow.window).plan->traffic;
  const int64_t forwards = recompute == Recompute::kFull ? 2 : 1;
  return forwards * sp::forward_bytes(traffic, element) +
         (has_backward ? sp::backward_bytes(traffic, element, sums) : 0);
}

// Of a stage that is trained, with the one that predicts a further token.
std::vector<int64_t> layers_of(const Decoder& decoder) {
  const sp::Range& layers = decoder.stage().layers;
  std::vector<int64_t> all(layers.size());
  std::iota(all.begin(), all.end(), layers.begin);
  if (decoder.stage().predicts_further(decoder.config())) {
    all.push_back(further_layer(decoder.config()));
  }
  return all;
}

}  // namespace

void SequenceWork::add(const sp::MicroBatch& batch, const Decoder& stage) {
  if (stage.stage().scores) {
    raw_tokens += static_cast<double>(batch.saving.raw_tokens);
    unique_tokens += static_cast<double>(batch.saving.unique_tokens);
  }
  for (const int64_t layer : layers_of(stage)) {
    if (const TokenFlow flow = stage.layer(layer).token_mixer().flow(); !flow.state) {
      const sp::WindowPlan& plan = batch.plan(flow.window);
      raw_pairs += static_cast<double>(plan.raw_pairs);
      unique_pairs += static_cast<double>(plan.unique_pairs);
    }
  }
  balance_tokens_max = std::max(balance_tokens_max, batch.balance.tokens);
  balance_pairs_max = std::max(balance_pairs_max, batch.balance.pairs);
}

double predicted_bytes(const HeadedModel& model, std::span<const ModelInput> inputs) {
  int64_t bytes = 0;
  for (const ModelInput& input : inputs) {
    bytes += tensor_bytes(model, input);
    for (const Decoder* stage : model.stages()) {
      const int64_t element = at::elementSize(stage->compute_dtype());
      const Recompute recompute = stage->activation_options().recompute;
      GradientFlow flow(stage->adapters(), stage->stage().embeds, recompute != Recompute::kNone);
      for (const int64_t layer : layers_of(*stage)) {
        bytes += planned_bytes(stage->layer(layer).token_mixer().flow(), *input.batch, element,
                               recompute, flow.next(layer).tokens.mixed);
      }
    }
  }
  return static_cast<double>(bytes);
}

}  // namespace ringside::engine
