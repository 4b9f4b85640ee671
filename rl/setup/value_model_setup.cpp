#include "rl/setup/value_model_setup.h"

#include "engine/io/value_model_files.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {

std::unique_ptr<engine::ValueModel> load_value_model(const Config& config, const std::string& path,
                                                     bool random, bool head_bias,
                                                     const engine::ComputeContext& context) {
  auto model =
      std::make_unique<engine::ValueModel>(load_model_config(config, path), context, head_bias);
  if (random) {
    for (engine::Decoder* stage : model->stages()) {
      stage->init_random(static_cast<uint64_t>(config.seed), config.model.init_std);
    }
  } else {
    engine::load_value_weights(path, *model);
  }
  for (engine::Decoder* stage : model->stages()) {
    stage->set_activation_options(activation_options(config));
  }
  return model;
}

}  // namespace ringside::rl
