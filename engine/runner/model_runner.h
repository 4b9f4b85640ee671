// Model runner: forward and backward passes of a model over micro-batches, gradient sync and
// optimizer. Policy, reference and critic are model runners, and a trainer uses models only through
// them. Every pass is a plan that run_pipeline() executes; without a pipeline it has one stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/device_sums.h"
#include "engine/models/headed_model.h"
#include "engine/optim/adamw.h"
#include "engine/optim/divergence.h"
#include "engine/optim/loss_scale.h"
#include "engine/params/named_slice.h"
#include "engine/runner/device_batches.h"
#include "engine/runner/gradient_sync.h"
#include "engine/runner/image_encoder.h"
#include "engine/runner/pipeline_units.h"
#include "engine/runner/stage_passes.h"
#include "sp/mesh/process_groups.h"

namespace ringside::engine {

// Result of an optimizer step; the same on every rank, but for the sums.
struct StepResult {
  double grad_norm = 0.0;  // of the summed gradient, before the clip; 0 for a skipped step
  // Load-balancing loss of the experts, mean over the micro-batches, without its coefficient; none
  // unless the runner adds it.
  std::optional<double> balance_loss = {};
  // Mean negative log-prob of further tokens, without its coefficient; none unless the runner
  // trains their layer.
  std::optional<double> further_loss = {};
  double loss_scale = 0.0;  // that the gradients were computed with; 0 without loss scaling
  bool skipped = false;     // the gradients were not finite under a loss scale
  HostSums sums;            // those passed to step(), of this rank
};

// How a trained model is made to use its experts alike. 0: not at all.
struct BalanceOptions {
  bool any() const { return aux_loss_coef > 0.0 || bias_update_rate > 0.0; }

  double aux_loss_coef = 0.0;  // of the mean of LoadBalance's loss over the micro-batches of a pass
  double bias_update_rate = 0.0;  // of Decoder::move_router_corrections() after every step
};

// How the layer that predicts a further token is trained.
struct FurtherTokensOptions {
  double coef = 0.0;   // of the mean negative log-prob over all its entries of a pass, on all ranks
  bool detach = true;  // as of FurtherInput
};

// Collective methods are called by all ranks of the group, with the same number of inputs of the
// same plan. A rank may hold no token of an input.
// Thread safety: none.
class ModelRunner {
 public:
  using OnOutput = engine::OnOutput;
  using LossFunction = engine::LossFunction;

  // A frozen model, which can be evaluated and exported.
  // Throws: c10::Error when the model is on another device than the groups' tensors.
  ModelRunner(std::unique_ptr<HeadedModel> model, const sp::ProcessGroups& groups);
  // A trained model.
  // Throws: c10::Error as above, as AdamW, and with Muon when no matrix of a layer is trained.
  ModelRunner(std::unique_ptr<HeadedModel> model, const sp::ProcessGroups& groups,
              const AdamWOptions& optimizer);

  // From now on. Throws: c10::Error for a frozen model, for one without experts, for an update of
  // corrections that its routers do not have, and for a load-balancing loss in a pipeline: it is
  // one loss over the layers of all stages.
  void balance_experts(const BalanceOptions& options);

  // From now on. Documents then have kNextIdField.
  // Throws: c10::Error for a frozen model, and for one without that layer.
  void predict_further_tokens(const FurtherTokensOptions& options);

  // From now on micro-batches may have images. Every rank calls it or none. Not collective.
  // Throws: c10::Error for a model without a vision tower.
  void take_images(ImageInput input);

  HeadedModel& model() { return *model_; }
  const HeadedModel& model() const { return *model_; }
  // The first of the model's decoders.
  const Decoder& decoder() const { return model_->trunk(); }
  Decoder& decoder() { return model_->trunk(); }

  // Forward passes without autograd, one input after the other. Outputs are on the device. A rank
  // of a pipeline that does not score gets outputs without scores. Collective over: sp; the ranks
  // of the experts; the shard of a sharded model; in a pipeline the world. Throws: c10::Error on
  // inputs that do not fit the model; what on_output throws.
  void evaluate(std::span<const ModelInput> inputs, const OnOutput& on_output) const;

  // Gradients of the summed loss. Drops the old gradients; runs forward, loss and backward of each
  // input; sums the gradients over kLoss. Does not change the weights. A rank of a pipeline that
  // does not score calls `loss` once without entries, so that it collects figures of the same
  // names. Collective over: kLoss; in a pipeline the world. Throws: c10::Error for a frozen model,
  // and on inputs that do not fit it; what loss throws.
  SequenceWork train(std::span<const ModelInput> inputs, const LossFunction& loss);

  // Clips the gradients of train() to max_grad_norm (0 = no clipping), takes one optimizer step,
  // and brings the step's figures to the host, `sums` among them.
  // Collective over: the shard of a sharded model; the line of a pipeline; as Muon::update().
  // Blocks: until the device is done. The one host sync of an optimizer step.
  // Float16 is trained with a loss scale: a norm that is not finite then skips the step and lowers
  // the scale. A skipped step does not count.
  // Throws: Diverged on every rank when the norm or a weight is not finite; with such a norm the
  // weights stay as they were. With a loss scale only if the norm is not finite at the smallest
  // scale. c10::Error for a frozen model.
  StepResult step(double learning_rate, double max_grad_norm, DeviceSums sums = {});

  // Whether it has an optimizer.
  bool is_trained() const { return optimizer_ != nullptr; }
  // Number of optimizer steps; set_step_count() restores it from a checkpoint.
  // Throws: c10::Error for a frozen model; on a negative count.
  int64_t step_count() const;
  void set_step_count(int64_t count);

  // What this rank holds of the master weights and, if the model is trained, of the optimizer's
  // moments (AdamW::named_state()) and the loss scale's state, as views.
  // Reading them saves the state. Copying into them restores it; call state_restored() then.
  // Blocks: until moments that travel to host memory have arrived.
  std::vector<NamedSlice> state_slices() const;
  void state_restored();

  // The part of it that this rank writes to a checkpoint: the ranks that hold the same elements
  // share them out. The parts of all ranks together are the whole state, each element once. Not
  // collective.
  std::vector<NamedSlice> state_to_write() const;

  // Weights = mixup x other + (1 - mixup) x weights, in master precision. `other` has the same
  // parameters. Not collective.
  // Throws: c10::Error when it has other parameters, or they are sharded otherwise.
  void interpolate_towards(const ModelRunner& other, double mixup);

 private:
  AdamW& optimizer();
  const AdamW& optimizer() const;
  // Executes a pass over `inputs` micro-batches.
  void run_plan(sp::PipelineSchedule schedule, std::size_t inputs, StageWork& work) const;
  // Calls the loss as a rank does that has no entry.
  void collect_figures_of(const ModelInput& input, const LossFunction& loss) const;
  c10::Device device() const { return model_->trunk().context().device; }
  StepResult take_step(double learning_rate, double max_grad_norm, DeviceSums& sums);
  // State of unit u, and of the loss scale.
  std::vector<NamedSlice> state_of(std::size_t u) const;
  std::vector<NamedSlice> loss_scale_state() const;
  double sent_bytes() const;
  // Adds what the other tensor-parallel ranks counted for their rows. Collective over: these.
  void add_tensor_ranks(ExpertLoad& load) const;

  std::unique_ptr<HeadedModel> model_;
  sp::ProcessGroups groups_;
  std::optional<c10::Stream> upload_stream_;
  // All null: frozen.
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<GradientSync> gradient_sync_;
  std::unique_ptr<PipelineUnits> pipeline_units_;
  std::optional<LossScale> loss_scale_;  // for float16
  BalanceOptions balance_;
  std::unique_ptr<ImageEncoder> images_;  // null: micro-batches have none
  std::optional<FurtherTokensOptions> further_;
  // Of the last pass, on the device; undefined without balance_ and further_.
  at::Tensor balance_loss_, balance_routes_LX_, further_loss_;
};

}  // namespace ringside::engine
