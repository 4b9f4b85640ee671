#include "rl/worker/shadow_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "engine/generate/paged_cache.h"
#include "rl/config/adapter_names.h"

namespace ringside::rl {

ShadowModel::ShadowModel(Config config) : config_(std::move(config)) {}

std::vector<PrefixedDecoder> ShadowModel::prefixed() const {
  std::vector<PrefixedDecoder> all;
  for (const auto& [name, decoder] : models_) {
    all.push_back({name.empty() ? "" : adapter_prefix(name), decoder.get()});
  }
  return all;
}

void ShadowModel::load() {
  TORCH_CHECK(snapshot_ != nullptr, "no weights are installed");
  if (models_.empty()) {
    models_ = make_worker_models(config_, c10::Device(c10::kCPU));
  }
  install_weights(prefixed(), *snapshot_);
}

std::string ShadowModel::install(std::shared_ptr<const bridge::WeightSnapshot> snapshot) {
  snapshot_ = std::move(snapshot);
  load();
  return installed_root_hash(prefixed(), snapshot_->manifest);
}

const engine::Decoder& ShadowModel::decoder(const std::string& adapter) {
  TORCH_CHECK(snapshot_ != nullptr, "no weights are installed");
  if (models_.empty()) {
    load();
  }
  const auto found = std::ranges::find(models_, adapter, &WorkerModel::name);
  TORCH_CHECK(found != models_.end(), "no weights of the adapter '", adapter, "' are installed");
  return *found->decoder;
}

std::vector<float> ShadowModel::score(const std::vector<int64_t>& ids, double temperature,
                                      const std::string& adapter) {
  const engine::Decoder& decoder = this->decoder(adapter);
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(ids.size());
  TORCH_CHECK(count >= 2, "score: ", count, " ids, expected 2 or more");
  // The prefill of generation is causal attention over one document.
  engine::PagedCache attention(decoder.config(), decoder.context());
  attention.begin_prompts({count});
  const at::Tensor ids_s = at::tensor(ids, at::kLong);
  const at::Tensor hidden_sE = decoder.forward(ids_s, at::arange(count, at::kLong), attention);
  const at::Tensor temperature_n = at::full({count - 1}, temperature, at::kFloat);
  const auto scores = decoder.score(hidden_sE.narrow(0, 0, count - 1),
                                    ids_s.narrow(0, 1, count - 1), temperature_n);
  const at::Tensor logprobs = scores.logprobs_n.to(at::kFloat).contiguous();
  const float* values = logprobs.const_data_ptr<float>();
  return {values, values + count - 1};
}

}  // namespace ringside::rl
