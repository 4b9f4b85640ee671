#include "rl/worker/shadow_model.h"

#include <ATen/ATen.h>

#include "engine/generate/kv_cache.h"
#include "rl/publish/weight_snapshot.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {

ShadowModel::ShadowModel(const Config& config)
    : decoder_(make_worker_model(config, c10::Device(c10::kCPU))) {}

std::string ShadowModel::install(const bridge::WeightSnapshot& snapshot) {
  install_weights(*decoder_, snapshot);
  return installed_root_hash(*decoder_, snapshot.manifest);
}

std::vector<float> ShadowModel::score(const std::vector<int64_t>& ids, double temperature) const {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(ids.size());
  TORCH_CHECK(count >= 2, "score: ", count, " ids, expected 2 or more");
  // The prefill of generation is causal attention over one document.
  engine::KvCache attention(decoder_->config(), {count}, decoder_->context(), count);
  const at::Tensor ids_s = at::tensor(ids, at::kLong);
  const at::Tensor hidden_sE = decoder_->forward(ids_s, at::arange(count, at::kLong), attention);
  const at::Tensor temperature_n = at::full({count - 1}, temperature, at::kFloat);
  const auto scores = decoder_->score(hidden_sE.narrow(0, 0, count - 1),
                                      ids_s.narrow(0, 1, count - 1), temperature_n);
  const at::Tensor logprobs = scores.logprobs_n.to(at::kFloat).contiguous();
  const float* values = logprobs.const_data_ptr<float>();
  return {values, values + count - 1};
}

}  // namespace ringside::rl
