#include "engine/layers/mixer.h"

#include <stdexcept>

#include "engine/layers/delta_net.h"
#include "engine/layers/expert_mlp.h"
#include "engine/layers/gated_mlp.h"
#include "engine/layers/latent_attention.h"
#include "engine/layers/softmax_attention.h"
#include "engine/layers/squared_relu_mlp.h"

namespace ringside::engine {

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
    case ChannelMixerKind::kSquaredReluMlp:
      return std::make_unique<SquaredReluMlp>(config, table);
  }
  throw std::logic_error("a layer's channel mixer is none of the known ones");
}

}  // namespace ringside::engine
