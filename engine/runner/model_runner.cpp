#include "engine/runner/model_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "engine/device/device_backend.h"
#include "engine/device/side_stream.h"
#include "engine/layers/decoder_layer.h"
#include "engine/optim/grad_clip.h"
#include "engine/runner/overlapped_ulysses.h"
#include "engine/runner/replayed_rows.h"
#include "engine/runner/sequence_parallel_attention.h"
#include "engine/runner/sequence_parallel_delta.h"

namespace ringside::engine {
namespace {

// Names among the figures of an optimizer step.
constexpr const char* kGradNorm = "grad_norm";
constexpr const char* kFiniteMarks = "finite_marks";
constexpr const char* kLossScale = "loss_scale";
constexpr const char* kBalanceLoss = "balance_loss";

// Attention backend of a micro-batch over the mesh, for all layers and both passes. wire: device
// and dtype of q, k and v. Only plain weights can be projected by parts, so with adapters
// asynchronous Ulysses becomes synchronous; in models with gated delta nets too.
std::unique_ptr<AttentionBackend> attention_of(const sp::MicroBatch& batch,
                                               const at::Tensor& share_positions_S,
                                               const sp::ProcessGroups& groups,
                                               const Decoder& decoder) {
  const at::TensorOptions wire = decoder.context().compute_options();
  const auto kernels = device_backend(wire.device().type()).attention_kernels();
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
  if (batch.async_ulysses && decoder.has_plain_weights()) {
    return std::make_unique<OverlappedUlysses>(std::move(contexts), share_positions_S);
  }
  return std::make_unique<SequenceParallelAttention>(std::move(contexts));
}

std::string name_of_non_finite(std::span<ParamUnit* const> units) {
  const std::string name = first_non_finite(units);
  return name.empty() ? "another rank's shard" : name;
}

void add_work(SequenceWork& work, const sp::MicroBatch& batch, const Decoder& model) {
  work.raw_tokens += static_cast<double>(batch.saving.raw_tokens);
  work.unique_tokens += static_cast<double>(batch.saving.unique_tokens);
  const sp::Range& layers = model.stage().layers;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    if (const TokenFlow flow = model.layer(layer).token_mixer().flow(); !flow.state) {
      const sp::WindowPlan& plan = batch.plan(flow.window);
      work.raw_pairs += static_cast<double>(plan.raw_pairs);
      work.unique_pairs += static_cast<double>(plan.unique_pairs);
    }
  }
  work.balance_tokens_max = std::max(work.balance_tokens_max, batch.balance.tokens);
  work.balance_pairs_max = std::max(work.balance_pairs_max, batch.balance.pairs);
}

// Bytes that this rank sends for a token mixer in a forward and backward of a micro-batch, by its
// plan. A second forward runs again what passes a state; attention only when all is recomputed.
int64_t planned_bytes(const TokenFlow& flow, const sp::MicroBatch& batch, int64_t element,
                      Recompute recompute) {
  const int64_t sums = std::max<int64_t>(4, element);
  if (flow.state) {
    const sp::StateTraffic& traffic = batch.state_plan->traffic;
    const int64_t forwards = recompute == Recompute::kNone ? 1 : 2;
    return forwards * sp::forward_bytes(traffic, element, sums) +
           sp::backward_bytes(traffic, element, sums);
  }
  const sp::Traffic& traffic = batch.plan(flow.window).plan->traffic;
  const int64_t forwards = recompute == Recompute::kFull ? 2 : 1;
  return forwards * sp::forward_bytes(traffic, element) +
         sp::backward_bytes(traffic, element, sums);
}

// That the plans predict for the mixers' passes over the inputs.
double predicted_bytes(const Decoder& model, std::span<const ModelInput> inputs) {
  const int64_t element = at::elementSize(model.compute_dtype());
  const Recompute recompute = model.activation_options().recompute;
  const sp::Range& layers = model.stage().layers;
  int64_t bytes = 0;
  for (const ModelInput& input : inputs) {
    for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
      bytes +=
          planned_bytes(model.layer(layer).token_mixer().flow(), *input.batch, element, recompute);
    }
  }
  return static_cast<double>(bytes);
}

}  // namespace

ModelRunner::ModelRunner(std::unique_ptr<HeadedModel> model, const sp::ProcessGroups& groups)
    : model_(std::move(model)), groups_(groups), upload_stream_(make_side_stream(device())) {
  TORCH_CHECK(device() == groups_.device(), "model runner: a model on ", device(),
              " with groups for ", groups_.device());
}

ModelRunner::ModelRunner(std::unique_ptr<HeadedModel> model, const sp::ProcessGroups& groups,
                         const AdamWOptions& optimizer)
    : ModelRunner(std::move(model), groups) {
  optimizer_ = std::make_unique<AdamW>(model_->units(), optimizer);
  gradient_sync_ = std::make_unique<GradientSync>(model_->units(), groups_.tensors(sp::axes::kLoss),
                                                  model_->trunk().context());
  if (model_->trunk().compute_dtype() == at::kHalf) {
    loss_scale_.emplace(device());
  }
}

void ModelRunner::balance_experts(const BalanceOptions& options) {
  const ModelConfig& config = decoder().config();
  TORCH_CHECK(is_trained(), "model runner: the model is frozen, its experts cannot be balanced");
  TORCH_CHECK(options.aux_loss_coef == 0.0 || any_layer_supports(config, Feature::kRoutes),
              "model runner: a load-balancing loss for a model without experts");
  TORCH_CHECK(
      options.bias_update_rate == 0.0 || any_layer_supports(config, Feature::kRouterCorrections),
      "model runner: an update of corrections that the model's routers do not have");
  balance_ = options;
}

AdamW& ModelRunner::optimizer() {
  TORCH_CHECK(optimizer_ != nullptr, "model runner: the model is frozen, it has no optimizer");
  return *optimizer_;
}

const AdamW& ModelRunner::optimizer() const {
  TORCH_CHECK(optimizer_ != nullptr, "model runner: the model is frozen, it has no optimizer");
  return *optimizer_;
}

HeadOutput ModelRunner::forward(const DeviceBatch& batch, AttentionBackend& attention,
                                ExpertNotes& experts) const {
  experts.replayed_sLK = batch.routes_sLK;
  experts.records = batch.records_routes;
  const at::Tensor hidden_sE =
      model_->trunk().forward(batch.ids_s, batch.positions_s, attention, &experts);
  // As a table of embeddings: on CUDA its backward has no atomics, unlike that of index_select.
  HeadOutput output = model_->apply_head(
      {at::embedding(hidden_sE, batch.source_n), batch.target_n, batch.temperature_n});
  output.changed_routes = experts.changed;
  if (batch.records_routes) {
    output.routes_sLK = experts.recorded_sLK();
  }
  return output;
}

void ModelRunner::evaluate(std::span<const ModelInput> inputs, const OnOutput& on_output) const {
  const at::NoGradGuard no_grad;
  const ReplayedRows replayed(inputs, decoder(), upload_stream_);
  DeviceBatches batches(inputs, device(), upload_stream_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const DeviceBatch batch = batches.next();
    const auto attention =
        attention_of(*inputs[i].batch, batch.share_positions_S, groups_, model_->trunk());
    ExpertNotes experts{.counts = replayed.of_input(i)};
    on_output(i, forward(batch, *attention, experts));
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

at::Tensor ModelRunner::minimised(const at::Tensor& sum, const LoadBalance* balance,
                                  std::size_t inputs) {
  const at::Tensor scale = loss_scale_ ? loss_scale_->value() : at::Tensor();
  if (balance != nullptr) {
    const double share = 1.0 / static_cast<double>(inputs);
    at::Tensor weight = at::full({}, balance_.aux_loss_coef * share,
                                 at::TensorOptions().dtype(at::kDouble).device(device()));
    weight = scale.defined() ? weight * scale : weight;
    const at::Tensor loss = balance->finish(*groups_.tensors(sp::axes::kLoss), weight) * share;
    const at::Tensor routes_LX = balance->routes_LX();
    balance_loss_ = balance_loss_.defined() ? balance_loss_ + loss : loss;
    balance_routes_LX_ = balance_routes_LX_.defined() ? balance_routes_LX_ + routes_LX : routes_LX;
  }
  return scale.defined() ? sum * scale : sum;
}

SequenceWork ModelRunner::train(std::span<const ModelInput> inputs, const LossFunction& loss) {
  TORCH_CHECK(gradient_sync_ != nullptr, "model runner: the model is frozen, it cannot train");
  for (ParamUnit* unit : model_->units()) {
    unit->zero_grad();
  }
  const ModelConfig& config = decoder().config();
  SequenceWork work;
  work.expert_rows = no_expert_load(decoder());
  balance_loss_.reset();
  balance_routes_LX_.reset();
  const double sent_before = sent_bytes();
  const ReplayedRows replayed(inputs, decoder(), upload_stream_);
  DeviceBatches batches(inputs, device(), upload_stream_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const DeviceBatch batch = batches.next();
    // Lives until the backward, in which recomputed layers call it again.
    const auto attention =
        attention_of(*inputs[i].batch, batch.share_positions_S, groups_, model_->trunk());
    std::optional<LoadBalance> balance;
    if (balance_.any()) {
      balance.emplace(std::ssize(expert_layers(config)), config.experts.count, batch.copies_s);
    }
    ExpertNotes experts{.load = &work.expert_rows,
                        .balance = balance ? &*balance : nullptr,
                        .counts = replayed.of_input(i)};
    const at::Tensor sum = minimised(loss(forward(batch, *attention, experts), batch.columns),
                                     experts.balance, inputs.size());
    if (i + 1 == inputs.size()) {
      gradient_sync_->expect_last_backward();
    }
    sum.backward();
    gradient_sync_->end_backward();
    add_work(work, *inputs[i].batch, decoder());
  }
  gradient_sync_->finish();
  work.sent_bytes = sent_bytes() - sent_before;
  work.predicted_bytes = predicted_bytes(decoder(), inputs);
  return work;
}

StepResult ModelRunner::take_step(double learning_rate, double max_grad_norm, DeviceSums& sums) {
  const auto units = model_->units();
  const at::Tensor unscale =
      loss_scale_ ? loss_scale_->value().to(at::kDouble).reciprocal() : at::Tensor();
  const at::Tensor scaled_norm = global_grad_norm(units);
  const at::Tensor norm = loss_scale_ ? scaled_norm * unscale : scaled_norm;
  const at::Tensor clip = clip_scale(norm, max_grad_norm);
  const at::Tensor skip = norm.isfinite().logical_not().to(at::kFloat);
  optimizer().step(learning_rate, {loss_scale_ ? clip * unscale : clip, skip});
  sums.add(kGradNorm, norm);
  sums.add(kFiniteMarks, finite_marks(units));
  if (loss_scale_) {
    sums.add(kLossScale, loss_scale_->value());
    loss_scale_->update(skip);
  }
  if (balance_loss_.defined()) {
    sums.add(kBalanceLoss, balance_loss_);
  }
  StepResult result;
  result.sums = sums.fetch();
  if (const auto found = result.sums.find(kBalanceLoss); found != result.sums.end()) {
    result.balance_loss = found->second.front();
  }
  result.grad_norm = result.sums.at(kGradNorm).front();
  if (loss_scale_) {
    result.loss_scale = result.sums.at(kLossScale).front();
    result.skipped = !std::isfinite(result.grad_norm) && result.loss_scale > kSmallestLossScale;
  }
  return result;
}

StepResult ModelRunner::step(double learning_rate, double max_grad_norm, DeviceSums sums) {
  const auto units = model_->units();
  StepResult result = take_step(learning_rate, max_grad_norm, sums);
  if (result.skipped) {
    result.grad_norm = 0.0;
    optimizer().set_step_count(optimizer().step_count() - 1);
  }
  if (!std::isfinite(result.grad_norm)) {
    throw Diverged("the gradient norm is " + std::to_string(result.grad_norm) +
                   (loss_scale_ ? " at a loss scale of " + std::to_string(result.loss_scale) : "") +
                   "; the weights were left as they were before this optimizer step");
  }
  for (const double mark : result.sums.at(kFiniteMarks)) {
    if (!std::isfinite(mark)) {
      throw Diverged("the optimizer step at learning rate " + std::to_string(learning_rate) +
                     " made weights of " + name_of_non_finite(units) + " not finite");
    }
  }
  if (balance_.bias_update_rate > 0.0 && balance_routes_LX_.defined() && !result.skipped) {
    decoder().move_router_corrections(balance_routes_LX_, balance_.bias_update_rate);
  }
  return result;
}

int64_t ModelRunner::step_count() const { return optimizer().step_count(); }

void ModelRunner::set_step_count(int64_t count) { optimizer().set_step_count(count); }

std::vector<NamedSlice> ModelRunner::state_of(std::size_t u) const {
  std::vector<NamedSlice> slices = model_->units()[u]->storage().slices();
  if (optimizer_ != nullptr) {
    std::ranges::move(optimizer_->named_state(u), std::back_inserter(slices));
  }
  return slices;
}

std::vector<NamedSlice> ModelRunner::loss_scale_state() const {
  std::vector<NamedSlice> slices;
  if (loss_scale_) {
    for (const auto& [name, value] : loss_scale_->named_state()) {
      slices.push_back({name, {1}, 0, value.view({1})});
    }
  }
  return slices;
}

std::vector<NamedSlice> ModelRunner::state_slices() const {
  std::vector<NamedSlice> slices;
  for (std::size_t u = 0; u < model_->units().size(); ++u) {
    std::ranges::move(state_of(u), std::back_inserter(slices));
  }
  std::ranges::move(loss_scale_state(), std::back_inserter(slices));
  return slices;
}

std::vector<NamedSlice> ModelRunner::state_to_write() const {
  // What each group of ranks holds alike: all ranks, those with the same shard, the same experts.
  const sp::Communicator* world = groups_.tensors(sp::axes::kLoss).get();
  std::vector<std::pair<const sp::Communicator*, std::vector<NamedSlice>>> held;
  held.emplace_back(world, loss_scale_state());
  const auto units = model_->units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    const sp::Communicator* holders = units[u]->storage().holders();
    holders = holders != nullptr ? holders : world;
    auto group = std::ranges::find(held, holders, [](const auto& h) { return h.first; });
    if (group == held.end()) {
      group = held.insert(group, {holders, {}});
    }
    std::ranges::move(state_of(u), std::back_inserter(group->second));
  }
  std::vector<NamedSlice> share;
  for (const auto& [ranks, slices] : held) {
    std::ranges::move(share_of(slices, ranks->rank(), ranks->size()), std::back_inserter(share));
  }
  return share;
}

void ModelRunner::state_restored() {
  for (const ParamUnit* unit : model_->units()) {
    unit->changed();
  }
}

void ModelRunner::interpolate_towards(const ModelRunner& other, double mixup) {
  const at::NoGradGuard no_grad;
  const auto ours = model_->units();
  const auto theirs = other.model_->units();
  TORCH_CHECK(ours.size() == theirs.size(), "model runner: ", ours.size(),
              " parameter units against ", theirs.size());
  for (std::size_t u = 0; u < ours.size(); ++u) {
    TORCH_CHECK(ours[u]->flat().sizes() == theirs[u]->flat().sizes(), "model runner: unit ",
                ours[u]->name(), " is sharded differently in the other model");
    ours[u]->flat().lerp_(theirs[u]->flat(), mixup);
    ours[u]->changed();
  }
}

}  // namespace ringside::engine
