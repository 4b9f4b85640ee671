#include "engine/layers/mixer.h"

#include <stdexcept>

#include "engine/layers/delta_net.h"
#include "engine/layers/expert_mlp.h"
#include "engine/layers/gated_mlp.h"
#include "engine/layers/latent_attention.h"
#include "engine/layers/softmax_attention.h"

namespace ringside::engine {

int64_t attention_sent_bytes(const sp::MicroBatch& batch, int64_t window, int64_t element,
                             int64_t sums, Recompute recompute) {
  const int64_t forwards = recompute == Recompute::kFull ? 2 : 1;
  const sp::Traffic& traffic = batch.plan(window).plan->traffic;
  return forwards * sp::forward_bytes(traffic, element) +
         sp::backward_bytes(traffic, element, sums);
}

std::unique_ptr<TokenMixer> make_token_mixer(const ModelConfig& config, int64_t layer,
                                             ParamTable& table) {
  switch (config.block(layer).token_mixer) {
    case TokenMixerKind::kSoftmaxAttention:
      return std::make_unique<SoftmaxAttention>(config, layer, table);
    case TokenMixerKind::kLatentAttention:
      return std::make_unique<LatentAttention>(config, layer, table);
    case TokenMixerKind::kGatedDelta:
      return std::make_unique<DeltaNet>(config, layer, table);
  }
  throw std::logic_error("a layer's token mixer is none of the known ones");
}

std::unique_ptr<ChannelMixer> make_channel_mixer(const ModelConfig& config, int64_t layer,
                                                 ParamTable& table) {
  switch (config.block(layer).channel_mixer) {
    case ChannelMixerKind::kMlp:
      return std::make_unique<GatedMlp>(config, table);
    case ChannelMixerKind::kExperts:
      return std::make_unique<ExpertMlp>(config, table);
  }
  throw std::logic_error("a layer's channel mixer is none of the known ones");
}

}  // namespace ringside::engine
