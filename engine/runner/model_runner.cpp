#include "engine/runner/model_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "engine/device/side_stream.h"
#include "engine/layers/decoder_layer.h"
#include "engine/optim/grad_clip.h"
#include "engine/runner/layer_matrices.h"
#include "sp/batch/next_ids.h"
#include "sp/mesh/control.h"

namespace ringside::engine {
namespace {

// Names among the figures of an optimizer step.
constexpr const char* kGradNorm = "grad_norm";
constexpr const char* kFiniteMarks = "finite_marks";
constexpr const char* kLossScale = "loss_scale";
constexpr const char* kBalanceLoss = "balance_loss";
constexpr const char* kFurtherLoss = "further_loss";

std::string name_of_non_finite(std::span<ParamUnit* const> units) {
  const std::string name = first_non_finite(units);
  return name.empty() ? "another rank's shard" : name;
}

// What Muon updates of a model; nullopt: AdamW updates everything.
std::optional<MuonMatrices> matrices_of_muon(HeadedModel& model, const AdamWOptions& options,
                                             const sp::ProcessGroups& groups) {
  if (!options.muon) {
    return std::nullopt;
  }
  MuonMatrices matrices{layer_matrices(model), groups.tensors(sp::axes::kLoss)};
  TORCH_CHECK(
      std::ranges::any_of(matrices.of_unit, [](const auto& of) { return !of.empty(); }) ||
          std::ranges::all_of(model.stages(),
                              [](const Decoder* stage) { return stage->stage().layers.empty(); }),
      "model runner: Muon updates matrices of layers, and the model trains none");
  return matrices;
}

// For all experts of the whole model.
ExpertLoad no_load(const HeadedModel& model) {
  const ModelConfig& config = model.trunk().config();
  ExpertLoad load(config.num_hidden_layers);
  for (const int64_t layer : expert_layers(config)) {
    load[layer].resize(config.experts.count);
  }
  return load;
}

// Entries of further tokens of a pass, over all ranks, at least 1.
// Collective over: kLoss. Throws: c10::Error on inputs without kNextIdField.
double further_entries_of(std::span<const ModelInput> inputs, const sp::ProcessGroups& groups) {
  double entries = 0.0;
  for (const ModelInput& input : inputs) {
    TORCH_CHECK(input.batch->further_source_m.defined(), "model runner: documents without ",
                sp::kNextIdField, ", which the layer that predicts a further token reads");
    entries += static_cast<double>(input.batch->further_source_m.size(0));
  }
  return std::max(1.0, sp::sum_scalars({entries}, *groups.control(sp::axes::kLoss)).front());
}

// The tensor-parallel ranks; null: there is one.
std::shared_ptr<sp::Communicator> tensor_ranks_of(const Decoder& decoder) {
  const auto& tensor = decoder.context().tensor;
  return tensor == nullptr ? nullptr : tensor->ranks;
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
  optimizer_ = std::make_unique<AdamW>(model_->units(), optimizer,
                                       matrices_of_muon(*model_, optimizer, groups_));
  pipeline_units_ = std::make_unique<PipelineUnits>(*model_, groups_.control(sp::axes::kPipeline));
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
  TORCH_CHECK(options.aux_loss_coef == 0.0 || decoder().context().pipeline == nullptr,
              "model runner: a load-balancing loss is one loss over all layers, and a stage of a "
              "pipeline has the layers of its own only; expected an update of corrections");
  balance_ = options;
}

void ModelRunner::predict_further_tokens(const FurtherTokensOptions& options) {
  TORCH_CHECK(is_trained(),
              "model runner: the model is frozen, it does not learn to predict further tokens");
  TORCH_CHECK(model_->has_vocabulary() && decoder().stage().predicts_further(decoder().config()),
              "model runner: the model has no layer that predicts further tokens");
  further_ = options;
}

void ModelRunner::take_images(ImageInput input) {
  images_ = std::make_unique<ImageEncoder>(decoder(), groups_, std::move(input));
}

AdamW& ModelRunner::optimizer() {
  TORCH_CHECK(optimizer_ != nullptr, "model runner: the model is frozen, it has no optimizer");
  return *optimizer_;
}

const AdamW& ModelRunner::optimizer() const {
  TORCH_CHECK(optimizer_ != nullptr, "model runner: the model is frozen, it has no optimizer");
  return *optimizer_;
}

void ModelRunner::run_plan(sp::PipelineSchedule schedule, std::size_t inputs,
                           StageWork& work) const {
  const Pipeline* pipeline = decoder().context().pipeline.get();
  const auto count = static_cast<int64_t>(inputs);
  if (pipeline == nullptr) {
    const std::shared_ptr<sp::Communicator> alone = groups_.tensors(sp::axes::kNone);
    run_pipeline(pipeline_plan({}, schedule, /*warm_up=*/0, count), {}, *alone, work);
    return;
  }
  const bool trains = schedule != sp::PipelineSchedule::kForwardOnly;
  const sp::PipelinePlan plan =
      pipeline_plan(pipeline->shape, schedule, trains ? pipeline->warm_up : 0, count);
  sp::check_agreement(plan.hash(), "the plan of the pipeline", *groups_.control(sp::axes::kWorld));
  run_pipeline(plan, pipeline->shape, *pipeline->line, work);
}

void ModelRunner::add_tensor_ranks(ExpertLoad& load) const {
  const auto& tensor = decoder().context().tensor;
  if (tensor == nullptr || tensor->ranks->size() == 1) {
    return;
  }
  for (std::vector<double>& of_layer : load) {
    if (!of_layer.empty()) {
      of_layer = sp::sum_scalars(of_layer, *groups_.control(sp::axes::kTensor));
    }
  }
}

void ModelRunner::evaluate(std::span<const ModelInput> inputs, const OnOutput& on_output) const {
  if (inputs.empty()) {
    return;
  }
  LiveInputs live(*model_, inputs, groups_, upload_stream_, images_.get());
  EvaluationPass pass(live, on_output);
  run_plan(sp::PipelineSchedule::kForwardOnly, inputs.size(), pass);
}

double ModelRunner::sent_bytes() const {
  double bytes = 0.0;
  for (const sp::Axes axes : {sp::axes::kUlysses, sp::axes::kRing}) {
    for (const auto& [tag, sent] : groups_.tensors(axes)->sent_bytes()) {
      bytes += static_cast<double>(sent);
    }
  }
  const auto& tensor = decoder().context().tensor;
  if (tensor != nullptr && tensor->ranks->sent_bytes().contains(kTensorTag)) {
    bytes += static_cast<double>(tensor->ranks->sent_bytes().at(kTensorTag));
  }
  return bytes;
}

void ModelRunner::collect_figures_of(const ModelInput& input, const LossFunction& loss) const {
  const at::Tensor none =
      at::zeros({0}, at::TensorOptions().dtype(decoder().context().master).device(device()));
  Columns columns;
  for (const auto& [name, values_n] : input.columns.all()) {
    columns.set(name, values_n.narrow(0, 0, 0).to(device()));
  }
  const at::NoGradGuard no_grad;
  loss({none, none, none}, columns);
}

SequenceWork ModelRunner::train(std::span<const ModelInput> inputs, const LossFunction& loss) {
  TORCH_CHECK(gradient_sync_ != nullptr, "model runner: the model is frozen, it cannot train");
  for (ParamUnit* unit : model_->units()) {
    unit->zero_grad();
  }
  const Pipeline* pipeline = decoder().context().pipeline.get();
  const double share = 1.0 / static_cast<double>(std::max<std::size_t>(1, inputs.size()));
  TrainingOutcome outcome;
  outcome.work.expert_rows = no_load(*model_);
  const double sent_before = sent_bytes();
  double further_entries = 1.0;
  if (!inputs.empty()) {
    std::optional<FurtherPass> further;
    if (further_) {
      further_entries = further_entries_of(inputs, groups_);
      further = FurtherPass{further_->coef / further_entries, further_->detach};
    }
    LiveInputs live(*model_, inputs, groups_, upload_stream_, images_.get());
    const TrainingParts parts{loss,
                              *gradient_sync_,
                              loss_scale_ ? loss_scale_->value() : at::Tensor(),
                              balance_.any(),
                              balance_.aux_loss_coef * share,
                              groups_.tensors(sp::axes::kLoss),
                              tensor_ranks_of(decoder()),
                              further,
                              model_->units()};
    TrainingPass pass(live, parts, /*is_whole=*/pipeline == nullptr, outcome);
    run_plan(
        pipeline == nullptr ? sp::PipelineSchedule::kOneForwardOneBackward : pipeline->schedule,
        inputs.size(), pass);
    if (!model_->scores()) {
      collect_figures_of(inputs.front(), loss);
    }
  }
  const bool replays = !inputs.empty() && inputs.front().routes_sLK.defined();
  if (replays && !outcome.work.changed_routes.defined()) {  // a stage without experts
    outcome.work.changed_routes =
        at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device()));
  }
  gradient_sync_->finish();
  pipeline_units_->add_copies();
  further_loss_ = outcome.further_sum;
  if (further_loss_.defined()) {
    groups_.tensors(sp::axes::kLoss)->all_reduce_sum(further_loss_, kFurtherLoss);
    further_loss_ = further_loss_ / further_entries;
  }
  balance_loss_ = outcome.balance_loss;
  balance_routes_LX_ = outcome.balance_routes_LX;
  outcome.work.sent_bytes = sent_bytes() - sent_before;
  outcome.work.predicted_bytes = predicted_bytes(*model_, inputs);
  add_tensor_ranks(outcome.work.expert_rows);
  return outcome.work;
}

StepResult ModelRunner::take_step(double learning_rate, double max_grad_norm, DeviceSums& sums) {
  const auto units = model_->units();
  const at::Tensor unscale =
      loss_scale_ ? loss_scale_->value().to(at::kDouble).reciprocal() : at::Tensor();
  const at::Tensor scaled_norm =
      norm_of_squares(pipeline_units_->of_model(squares_of_units(units)));
  const at::Tensor norm = loss_scale_ ? scaled_norm * unscale : scaled_norm;
  const at::Tensor clip = clip_scale(norm, max_grad_norm);
  const at::Tensor skip = norm.isfinite().logical_not().to(at::kFloat);
  optimizer().step(learning_rate, {loss_scale_ ? clip * unscale : clip, skip});
  sums.add(kGradNorm, norm);
  const at::Tensor marks = finite_marks(units);
  sums.add(kFiniteMarks, at::cat({marks, pipeline_units_->sum_of_model(marks)}));
  if (loss_scale_) {
    sums.add(kLossScale, loss_scale_->value());
    loss_scale_->update(skip);
  }
  if (balance_loss_.defined()) {
    sums.add(kBalanceLoss, balance_loss_);
  }
  if (further_loss_.defined()) {
    sums.add(kFurtherLoss, further_loss_);
  }
  StepResult result;
  result.sums = sums.fetch();
  if (const auto found = result.sums.find(kFurtherLoss); found != result.sums.end()) {
    result.further_loss = found->second.front();
  }
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
    for (Decoder* stage : model_->stages()) {
      if (stage->parameters().router_corrections() != nullptr) {
        stage->move_router_corrections(balance_routes_LX_, balance_.bias_update_rate);
      }
    }
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
  // What each group of ranks holds alike: all ranks, those of a stage, those with the same shard,
  // the same experts.
  const sp::Communicator* world = groups_.tensors(sp::axes::kWorld).get();
  const sp::Communicator* of_stage = groups_.tensors(sp::axes::kLoss).get();
  std::vector<std::pair<const sp::Communicator*, std::vector<NamedSlice>>> held;
  held.emplace_back(world, loss_scale_state());
  const auto units = model_->units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (pipeline_units_ != nullptr && pipeline_units_->is_copy(units[u])) {
      continue;
    }
    const sp::Communicator* holders = units[u]->storage().holders();
    holders = holders != nullptr ? holders : of_stage;
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
