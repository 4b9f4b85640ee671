#include "engine/runner/model_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/optim/grad_clip.h"
#include "engine/runner/overlapped_ulysses.h"
#include "engine/runner/sequence_parallel_attention.h"
#include "sp/mesh/control.h"

namespace ringside::engine {

std::unique_ptr<AttentionBackend> micro_batch_attention(const sp::MicroBatch& batch,
                                                        const sp::ProcessGroups& groups) {
  sp::AttentionContext context{batch.plan, groups.tensors(sp::axes::kUlysses),
                               groups.tensors(sp::axes::kRing)};
  if (batch.async_ulysses) {
    return std::make_unique<OverlappedUlysses>(std::move(context), batch.share_positions_S);
  }
  return std::make_unique<SequenceParallelAttention>(std::move(context));
}

ModelRunner::ModelRunner(std::unique_ptr<HeadedModel> model, const sp::ProcessGroups& groups)
    : model_(std::move(model)), groups_(groups) {}

ModelRunner::ModelRunner(std::unique_ptr<HeadedModel> model, const sp::ProcessGroups& groups,
                         const AdamWOptions& optimizer)
    : ModelRunner(std::move(model), groups) {
  optimizer_ = std::make_unique<AdamW>(model_->units(), optimizer);
}

AdamW& ModelRunner::optimizer() {
  TORCH_CHECK(optimizer_ != nullptr, "model runner: the model is frozen, it has no optimizer");
  return *optimizer_;
}

const AdamW& ModelRunner::optimizer() const {
  TORCH_CHECK(optimizer_ != nullptr, "model runner: the model is frozen, it has no optimizer");
  return *optimizer_;
}

HeadOutput ModelRunner::forward(const ModelInput& input, AttentionBackend& attention) const {
  const sp::MicroBatch& batch = *input.batch;
  const at::Tensor hidden_sE = model_->trunk().forward(batch.ids_s, batch.positions_s, attention);
  return model_->apply_head(hidden_sE.index_select(0, batch.source_n), input);
}

void ModelRunner::evaluate(std::span<const ModelInput> inputs, const OnOutput& on_output) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto attention = micro_batch_attention(*inputs[i].batch, groups_);
    on_output(i, forward(inputs[i], *attention));
  }
}

double ModelRunner::sent_bytes() const {
  double bytes = 0.0;
  for (const sp::Axes axes : {sp::axes::kUlysses, sp::axes::kRing}) {
    for (const auto& [tag, sent] : groups_.tensors(axes)->sent_bytes()) {
      bytes += static_cast<double>(sent);
    }
  }
  return bytes;
}

double ModelRunner::predicted_bytes(std::span<const ModelInput> inputs) const {
  const Decoder& decoder = model_->trunk();
  const int64_t element = at::elementSize(decoder.compute_dtype());
  const int64_t forwards = decoder.recompute_activations() ? 2 : 1;
  int64_t bytes = 0;
  for (const ModelInput& input : inputs) {
    bytes += decoder.config().num_hidden_layers *
             (forwards * sp::forward_bytes(*input.batch->plan, element) +
              sp::backward_bytes(*input.batch->plan, element, std::max<int64_t>(4, element)));
  }
  return static_cast<double>(bytes);
}

SequenceWork ModelRunner::train(std::span<const ModelInput> inputs, const LossFunction& loss) {
  const auto units = model_->units();
  for (ParamUnit* unit : units) {
    unit->zero_grad();
  }
  SequenceWork figures;
  const double sent_before = sent_bytes();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const sp::MicroBatch& batch = *inputs[i].batch;
    // Lives until the backward, in which recomputed layers call it again.
    const auto attention = micro_batch_attention(batch, groups_);
    loss(i, forward(inputs[i], *attention)).backward();
    figures.raw_tokens += static_cast<double>(batch.saving.raw_tokens);
    figures.unique_tokens += static_cast<double>(batch.saving.unique_tokens);
    figures.raw_pairs += static_cast<double>(batch.saving.raw_pairs);
    figures.unique_pairs += static_cast<double>(batch.saving.unique_pairs);
    figures.balance_tokens_max = std::max(figures.balance_tokens_max, batch.balance.tokens);
    figures.balance_pairs_max = std::max(figures.balance_pairs_max, batch.balance.pairs);
  }
  figures.sent_bytes = sent_bytes() - sent_before;
  figures.predicted_bytes = predicted_bytes(inputs);
  std::vector<at::Tensor> gradients;
  for (ParamUnit* unit : units) {
    gradients.push_back(unit->grad());
  }
  sp::sum_gradients(gradients, *groups_.tensors(sp::axes::kLoss));
  return figures;
}

double ModelRunner::step(double learning_rate, double max_grad_norm) {
  const auto units = model_->units();
  const double grad_norm = clip_grad_norm(
      units, max_grad_norm > 0.0 ? max_grad_norm : std::numeric_limits<double>::infinity());
  if (!std::isfinite(grad_norm)) {
    throw Diverged("the gradient norm is " + std::to_string(grad_norm) +
                   "; the weights were left as they were before this optimizer step");
  }
  optimizer().step(learning_rate);
  if (const std::string name = first_non_finite(units); !name.empty()) {
    throw Diverged("the optimizer step at learning rate " + std::to_string(learning_rate) +
                   " made weights of " + name + " not finite");
  }
  return grad_norm;
}

int64_t ModelRunner::step_count() const { return optimizer().step_count(); }

void ModelRunner::set_step_count(int64_t count) { optimizer().set_step_count(count); }

std::vector<std::pair<std::string, at::Tensor>> ModelRunner::named_state() const {
  return optimizer().named_state();
}

void ModelRunner::interpolate_towards(const ModelRunner& other, double mixup) {
  const at::NoGradGuard no_grad;
  const auto ours = model_->units();
  const auto theirs = other.model_->units();
  TORCH_CHECK(ours.size() == theirs.size(), "model runner: ", ours.size(),
              " parameter units against ", theirs.size());
  for (std::size_t u = 0; u < ours.size(); ++u) {
    ours[u]->flat().lerp_(theirs[u]->flat(), mixup);
  }
}

}  // namespace ringside::engine
