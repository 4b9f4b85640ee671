#include "engine/runner/gradient_flow.h"

#include <string>
#include <string_view>

namespace ringside::engine {

GradientFlow::OfLayer GradientFlow::next(int64_t index) {
  // Whether what is gathered between projections, what is mixed, and what comes out has adapters
  // before it.
  bool latents = false, inputs = false, tokens = false, channels = false;
  if (adapters_ != nullptr) {
    const std::string place = ".layers." + std::to_string(index) + ".";
    for (const ParamSpec& spec : adapters_->unit().specs()) {
      const std::size_t begin = spec.name.find(place);
      if (begin == std::string::npos) {
        continue;
      }
      const std::string_view module = std::string_view(spec.name).substr(begin + place.size());
      if (module.starts_with("mlp.")) {
        channels = true;
        continue;
      }
      tokens = true;
      inputs = inputs || (!module.starts_with("self_attn.o_proj.") &&
                          !module.starts_with("linear_attn.out_proj."));
      latents = latents || module.starts_with("self_attn.q_a_proj.") ||
                module.starts_with("self_attn.kv_a_proj_with_mqa.");
    }
  }
  OfLayer of_layer;
  of_layer.tokens = {stream_ || latents, stream_ || inputs, stream_ || tokens};
  of_layer.channels.gathered = of_layer.tokens.summed;
  of_layer.channels.summed = of_layer.tokens.summed || channels;
  stream_ = of_layer.channels.summed;
  return of_layer;
}

}  // namespace ringside::engine
