#include "engine/runner/stage_passes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>

#include "engine/layers/decoder_layer.h"
#include "engine/params/sharding.h"
#include "engine/runner/micro_batch_attention.h"

namespace ringside::engine {
namespace {

// Layers with experts of the model before a stage.
int64_t expert_layers_before(const Decoder& decoder) {
  return std::ranges::count_if(expert_layers(decoder.config()),
                               [&](int64_t layer) { return layer < decoder.stage().layers.begin; });
}

// The routes of a stage's layers in their places among those of the model, the others 0.
at::Tensor in_place(const at::Tensor& routes_sLK, const Decoder& decoder) {
  const int64_t layers = std::ssize(expert_layers(decoder.config()));
  if (routes_sLK.size(1) == layers) {
    return routes_sLK;
  }
  at::Tensor all =
      at::zeros({routes_sLK.size(0), layers, routes_sLK.size(2)}, routes_sLK.options());
  all.narrow(1, expert_layers_before(decoder), routes_sLK.size(1)).copy_(routes_sLK);
  return all;
}

std::shared_ptr<sp::Communicator> tensor_ranks_of(const ComputeContext& context) {
  return context.tensor == nullptr ? nullptr : context.tensor->ranks;
}

std::map<int64_t, const Decoder*> decoders_by_stage(const HeadedModel& model) {
  const std::vector<const Decoder*> stages = model.stages();
  const Pipeline* pipeline = model.trunk().context().pipeline.get();
  std::map<int64_t, const Decoder*> decoders;
  for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
    const int64_t stage =
        pipeline == nullptr
            ? 0
            : pipeline->shape.stage_of(pipeline->line->rank(), static_cast<int64_t>(chunk));
    decoders[stage] = stages[chunk];
  }
  return decoders;
}

}  // namespace

LiveInputs::LiveInputs(const HeadedModel& model, std::span<const ModelInput> inputs,
                       const sp::ProcessGroups& groups,
                       const std::optional<c10::Stream>& upload_stream, const ImageEncoder* images)
    : model_(model),
      inputs_(inputs),
      groups_(groups),
      images_(images),
      decoders_(decoders_by_stage(model)),
      replayed_(inputs, model.trunk(), upload_stream),
      batches_(inputs, model.trunk().context().device, upload_stream,
               tensor_ranks_of(model.trunk().context())) {}

const Decoder& LiveInputs::decoder(int64_t stage) const { return *decoders_.at(stage); }

LiveInputs::Input& LiveInputs::use(int64_t input) {
  if (const auto found = live_.find(input); found != live_.end()) {
    return found->second;
  }
  TORCH_CHECK(input == entered_, "stages: input ", input, " begins where ", entered_,
              " is the next one");
  ++entered_;
  Input& here = live_[input];
  here.batch = batches_.next();
  here.attention =
      micro_batch_attention(*inputs_[input].batch, here.batch, groups_, model_.trunk());
  here.runs_left = decoders_.size();
  return here;
}

bool LiveInputs::leave(int64_t input) {
  const auto found = live_.find(input);
  if (--found->second.runs_left > 0) {
    return false;
  }
  live_.erase(found);
  return true;
}

at::Tensor LiveInputs::message(int64_t input) const {
  const Decoder& decoder = *decoders_.begin()->second;
  const int64_t tokens = inputs_[input].batch->ids_s.size(0);
  const RowParts parts = row_parts(decoder.context(), tokens);
  return at::empty({parts.is_cut() ? parts.own().size() : tokens, decoder.config().hidden_size},
                   decoder.context().compute_options());
}

ImageRows LiveInputs::image_rows(const Decoder& decoder, const sp::MicroBatch& batch) const {
  TORCH_CHECK(images_ != nullptr || batch.image_plan == nullptr,
              "stages: an input has images, and the runner takes none");
  return images_ != nullptr && decoder.stage().embeds ? images_->rows(batch) : ImageRows{};
}

LiveInputs::Made LiveInputs::forward(int64_t stage, int64_t input, const at::Tensor& received_sE,
                                     ExpertNotes& experts) {
  Input& here = use(input);
  const Decoder& decoder = this->decoder(stage);
  const DeviceBatch& batch = here.batch;
  experts.replayed_sLK = batch.routes_sLK;
  experts.records = batch.records_routes;
  experts.counts = replayed_.of_input(input);
  Made made;
  made.hidden_sE =
      decoder.forward(decoder.stage().embeds ? batch.ids_s : received_sE, batch.positions_s,
                      *here.attention, &experts, image_rows(decoder, *inputs_[input].batch));
  if (batch.records_routes && !experts.recorded_sK.empty()) {
    here.recorded.push_back(in_place(replicate_rows(experts.recorded_sLK(), batch.rows), decoder));
  }
  if (decoder.stage().scores) {
    // As a table of embeddings: on CUDA its backward has no atomics, unlike that of index_select.
    made.output =
        model_.apply_head({at::embedding(made.hidden_sE, batch.source_n), batch.target_n,
                           batch.temperature_n, batch.entries, batch.kept, batch.scores_whole});
  }
  return made;
}

at::Tensor LiveInputs::further_logprobs(int64_t stage, int64_t input, const at::Tensor& hidden_sE,
                                        bool detach) {
  const Input& here = use(input);
  const DeviceBatch& batch = here.batch;
  TORCH_CHECK(batch.next_s.defined(),
              "stages: an input without the ids behind its tokens, which the layer that predicts a "
              "further token reads");
  return decoder(stage).further_logprobs({hidden_sE, batch.next_s, batch.positions_s,
                                          batch.further_source_m, batch.further_target_m, detach},
                                         *here.attention);
}

at::Tensor EvaluationPass::forward(int64_t stage, int64_t input, const at::Tensor& received) {
  const at::NoGradGuard no_grad;
  ExpertNotes experts;
  LiveInputs::Made made = inputs_.forward(stage, input, received, experts);
  HeadOutput output = made.output.value_or(HeadOutput{});
  for (const at::Tensor& routes_sLK : inputs_.use(input).recorded) {
    // The places of other stages are 0.
    output.routes_sLK = output.routes_sLK.defined() ? output.routes_sLK + routes_sLK : routes_sLK;
  }
  if (inputs_.leave(input)) {
    on_output_(static_cast<std::size_t>(input), output);
  }
  return made.output ? at::Tensor() : made.hidden_sE.contiguous();
}

at::Tensor EvaluationPass::backward(int64_t /*stage*/, int64_t /*input*/,
                                    const at::Tensor& /*gradient*/) {
  TORCH_CHECK(false, "stages: a backward in a pass without gradients");
}

at::Tensor EvaluationPass::input_gradient(int64_t stage, int64_t input,
                                          const at::Tensor& gradient) {
  return backward(stage, input, gradient);
}

void EvaluationPass::weight_gradient(int64_t stage, int64_t input) { backward(stage, input, {}); }

TrainingPass::TrainingPass(LiveInputs& inputs, const TrainingParts& parts, bool is_whole,
                           TrainingOutcome& outcome)
    : inputs_(inputs), parts_(parts), is_whole_(is_whole), outcome_(outcome) {
  for (const ParamUnit* unit : parts.units) {
    versions_.push_back(unit->flat()._version());
  }
}

void TrainingPass::check_unchanged(int64_t stage, int64_t input) const {
  for (std::size_t u = 0; u < versions_.size(); ++u) {
    const ParamUnit& unit = *parts_.units[u];
    TORCH_CHECK(unit.flat()._version() == versions_[u], "stages: weights of unit ", unit.name(),
                " changed between the pass's first forward and the backward of stage ", stage,
                " and input ", input, "; expected them to stay until its last backward");
  }
}

void TrainingPass::finish_balance(const LoadBalance& balance) {
  const double share = 1.0 / static_cast<double>(inputs_.size());
  at::Tensor weight = at::full({}, parts_.balance_weight, balance.routes_LX().options());
  weight = parts_.loss_scale.defined() ? weight * parts_.loss_scale : weight;
  if (parts_.tensor_ranks != nullptr) {
    balance.add_rows_of(*parts_.tensor_ranks);
  }
  const at::Tensor loss = balance.finish(*parts_.balance_ranks, weight) * share;
  const auto add = [](at::Tensor& sum, const at::Tensor& more) {
    sum = sum.defined() ? sum + more : more;
  };
  if (is_whole_) {
    add(outcome_.balance_loss, loss);
  }
  add(outcome_.balance_routes_LX, balance.routes_LX());
}

at::Tensor TrainingPass::forward(int64_t stage, int64_t input, const at::Tensor& received) {
  Open& open = open_[{stage, input}];
  const Decoder& decoder = inputs_.decoder(stage);
  const ModelConfig& config = decoder.config();
  if (parts_.balances) {
    open.balance.emplace(std::ssize(expert_layers(config)), config.experts.count,
                         inputs_.use(input).batch.copies_s);
  }
  open.experts.load = &outcome_.work.expert_rows;
  open.experts.balance = open.balance ? &*open.balance : nullptr;
  if (received.defined()) {
    open.received_sE = received.requires_grad_(true);
  }
  const LiveInputs::Made made = inputs_.forward(stage, input, open.received_sE, open.experts);
  if (open.experts.changed.defined()) {
    if (const RowParts& rows = inputs_.use(input).batch.rows; rows.is_cut()) {
      rows.ranks->all_reduce_sum(open.experts.changed, "changed_routes");
    }
    at::Tensor& changed = outcome_.work.changed_routes;
    changed = changed.defined() ? changed + open.experts.changed : open.experts.changed;
  }
  if (made.output) {
    at::Tensor sum = parts_.loss(*made.output, inputs_.use(input).batch.columns);
    if (parts_.further) {
      sum = sum + further_loss(stage, input, made.hidden_sE).to(sum.scalar_type());
    }
    open.sum = parts_.loss_scale.defined() ? sum * parts_.loss_scale : sum;
  }
  if (open.balance) {
    finish_balance(*open.balance);
  }
  if (made.output) {
    return {};
  }
  if (made.hidden_sE.requires_grad()) {
    open.end = torch::autograd::impl::gradient_edge(made.hidden_sE);
  }
  return made.hidden_sE.detach().contiguous();
}

at::Tensor TrainingPass::further_loss(int64_t stage, int64_t input, const at::Tensor& hidden_sE) {
  const at::Tensor sum =
      -inputs_.further_logprobs(stage, input, hidden_sE, parts_.further->detach).sum();
  const at::Tensor noted = sum.detach().to(at::kDouble);
  at::Tensor& all = outcome_.further_sum;
  all = all.defined() ? all + noted : noted;
  return sum * parts_.further->weight;
}

at::Tensor TrainingPass::backward(int64_t stage, int64_t input, const at::Tensor& gradient) {
  auto open = open_.extract({stage, input});
  TORCH_CHECK(open, "stages: a backward of stage ", stage, " and input ", input,
              " without a forward");
  check_unchanged(stage, input);
  Open& forward = open.mapped();
  if (input + 1 == static_cast<int64_t>(inputs_.size())) {
    parts_.sync.expect_last_backward();
  }
  if (forward.sum.defined()) {
    forward.sum.backward();
  } else if (forward.end.function != nullptr) {  // null: the stage trains nothing
    torch::autograd::Engine::get_default_engine().execute({forward.end}, {gradient},
                                                          /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true, {});
  }
  at::Tensor of_received =
      forward.received_sE.defined() ? forward.received_sE.grad() : at::Tensor();
  if (forward.received_sE.defined() && !of_received.defined()) {
    of_received = at::zeros_like(forward.received_sE, at::TensorOptions().requires_grad(false));
  }
  open = {};
  finish(stage, input);
  return of_received.defined() ? of_received.contiguous() : of_received;
}

at::Tensor TrainingPass::input_gradient(int64_t stage, int64_t input, const at::Tensor& gradient) {
  const auto found = open_.find({stage, input});
  TORCH_CHECK(found != open_.end(), "stages: a backward of stage ", stage, " and input ", input,
              " without a forward");
  check_unchanged(stage, input);
  Open& forward = found->second;
  at::Tensor of_received;
  const at::Tensor sum = std::exchange(forward.sum, at::Tensor());
  const auto end =
      sum.defined() ? torch::autograd::impl::gradient_edge(sum) : std::exchange(forward.end, {});
  if (end.function != nullptr) {  // null: the stage trains nothing
    forward.split.emplace(end, forward.received_sE);
    of_received = forward.split->input_gradient(sum.defined() ? at::ones_like(sum) : gradient);
    parts_.sync.end_backward();
  }
  forward.has_input_gradient = true;
  if (forward.received_sE.defined() && !of_received.defined()) {
    of_received = at::zeros_like(forward.received_sE, at::TensorOptions().requires_grad(false));
  }
  return of_received.defined() ? of_received.contiguous() : of_received;
}

void TrainingPass::weight_gradient(int64_t stage, int64_t input) {
  auto open = open_.extract({stage, input});
  TORCH_CHECK(open && open.mapped().has_input_gradient, "stages: weights' gradients of stage ",
              stage, " and input ", input, " before the gradient of its input");
  check_unchanged(stage, input);
  if (input + 1 == static_cast<int64_t>(inputs_.size())) {
    parts_.sync.expect_last_backward();
  }
  if (open.mapped().split) {
    open.mapped().split->weight_gradients();
  }
  open = {};
  finish(stage, input);
}

void TrainingPass::finish(int64_t stage, int64_t input) {
  parts_.sync.end_backward();
  outcome_.work.add(*inputs_.given(input).batch, inputs_.decoder(stage));
  inputs_.leave(input);
}

}  // namespace ringside::engine
