// Passes of a model's stages on this rank over micro-batches: what a pipeline's plan runs, with and
// without gradients. A model that is whole on the rank is one stage.
//
// What belongs to an input lives from its first run on this rank to its last: its part of the batch
// on the device, its attention, and for each stage what the layers note and what the backward
// starts from.
//
// Shapes: s = tokens of this rank, t = those of them whose rows this tensor rank keeps, n = its
// loss entries, E = hidden size, L = layers with experts, X = experts.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/edge.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/models/headed_model.h"
#include "engine/models/pipeline.h"
#include "engine/nn/load_balance.h"
#include "engine/runner/device_batches.h"
#include "engine/runner/gradient_sync.h"
#include "engine/runner/image_encoder.h"
#include "engine/runner/pipeline_run.h"
#include "engine/runner/replayed_rows.h"
#include "engine/runner/sequence_work.h"
#include "engine/runner/split_backward.h"
#include "sp/mesh/process_groups.h"

namespace ringside::engine {

// Takes the output of an input, by its index.
using OnOutput = std::function<void(std::size_t input, const HeadOutput& output)>;
// Returns this rank's weighted sum, to be summed over ranks: a scalar with a gradient path, also
// for inputs without an entry. columns: those of the input, on the device.
using LossFunction = std::function<at::Tensor(const HeadOutput& output, const Columns& columns)>;

// The inputs of a pass that are on this rank at a time.
class LiveInputs {
 public:
  // One input: the batch on the device, and its attention in the layers of all stages of the rank.
  struct Input {
    DeviceBatch batch;
    std::unique_ptr<AttentionBackend> attention;
    std::vector<at::Tensor>
        recorded;               // routes, of each stage that has run; with batch.records_routes
    std::size_t runs_left = 0;  // last runs of stages
  };

  // Of a model's stages on this rank. All of them outlive the object. images: null for inputs
  // without images.
  LiveInputs(const HeadedModel& model, std::span<const ModelInput> inputs,
             const sp::ProcessGroups& groups, const std::optional<c10::Stream>& upload_stream,
             const ImageEncoder* images = nullptr);
  std::size_t size() const { return inputs_.size(); }
  // An input as it was given.
  const ModelInput& given(int64_t input) const { return inputs_[input]; }
  // The decoder of a stage of this rank.
  const Decoder& decoder(int64_t stage) const;
  // An input on this rank; uploads it at its first use, in order.
  // Throws: c10::Error when it is not the next one.
  Input& use(int64_t input);
  // Ends a stage's last run of an input. Whether it was the last of this rank's stages.
  bool leave(int64_t input);

  // Memory for its hidden states between two stages: this tensor rank's rows, [t, E].
  at::Tensor message(int64_t input) const;
  struct Made {
    at::Tensor hidden_sE;
    std::optional<HeadOutput> output;  // where it scores
  };
  // A stage's hidden states or, where it scores, the head's output. Fills `experts`.
  // Throws: c10::Error on an input with images that nothing encodes.
  Made forward(int64_t stage, int64_t input, const at::Tensor& received_sE, ExpertNotes& experts);
  // Decoder::further_logprobs() for the hidden states of an input.
  // Throws: c10::Error on an input without what the layer reads.
  at::Tensor further_logprobs(int64_t stage, int64_t input, const at::Tensor& hidden_sE,
                              bool detach);

 private:
  ImageRows image_rows(const Decoder& decoder, const sp::MicroBatch& batch) const;

  const HeadedModel& model_;
  std::span<const ModelInput> inputs_;
  const sp::ProcessGroups& groups_;
  const ImageEncoder* images_;
  std::map<int64_t, const Decoder*> decoders_;  // by stage
  ReplayedRows replayed_;
  DeviceBatches batches_;
  int64_t entered_ = 0;
  std::map<int64_t, Input> live_;
};

// Forward passes without autograd.
class EvaluationPass final : public StageWork {
 public:
  // on_output gets each input once all stages of this rank have it; its scores are undefined on a
  // rank that does not score.
  EvaluationPass(LiveInputs& inputs, const OnOutput& on_output)
      : inputs_(inputs), on_output_(on_output) {}

  at::Tensor message(int64_t input) override { return inputs_.message(input); }
  at::Tensor forward(int64_t stage, int64_t input, const at::Tensor& received) override;
  // There are none: throw c10::Error.
  at::Tensor backward(int64_t stage, int64_t input, const at::Tensor& gradient) override;
  at::Tensor input_gradient(int64_t stage, int64_t input, const at::Tensor& gradient) override;
  void weight_gradient(int64_t stage, int64_t input) override;

 private:
  LiveInputs& inputs_;
  const OnOutput& on_output_;
};

// Of the layer that predicts a further token.
struct FurtherPass {
  double weight = 0.0;  // of each negative log-prob in what is minimised
  bool detach = true;   // as of FurtherInput
};

// What a training pass does beside the model's passes.
struct TrainingParts {
  const LossFunction& loss;
  GradientSync& sync;
  at::Tensor loss_scale;        // multiplies what is minimised; undefined: 1
  bool balances = false;        // experts are used alike
  double balance_weight = 0.0;  // of the balance loss of one input in what is minimised
  std::shared_ptr<sp::Communicator> balance_ranks;  // whose routes count together
  std::shared_ptr<sp::Communicator> tensor_ranks;   // null: there is one
  std::optional<FurtherPass> further = {};
  // Whose values stay as they are from the first run of the pass to the last.
  std::vector<ParamUnit*> units = {};
};

// What it leaves beside gradients.
struct TrainingOutcome {
  SequenceWork work;
  // On the device; undefined without `balances`. The loss is the mean over the inputs, and is
  // undefined where the model has stages: it is one loss over all layers.
  at::Tensor balance_loss, balance_routes_LX;
  // Sum of the negative log-probs of further tokens of this rank, a scalar in fp64 on the device;
  // undefined where none are predicted.
  at::Tensor further_sum = {};
};

// Forward and backward passes.
//
// Gradients are those of the weights that the forwards read. Where weights are gathered or cast,
// layers save copies, and autograd does not know that the master buffers have changed since. So
// each backward compares the buffers' version counters with those at the start of the pass.
class TrainingPass final : public StageWork {
 public:
  // All outlive it. is_whole: the model has no other stage.
  // Its backwards throw: c10::Error when a unit of `parts` has changed since.
  TrainingPass(LiveInputs& inputs, const TrainingParts& parts, bool is_whole,
               TrainingOutcome& outcome);
  at::Tensor message(int64_t input) override { return inputs_.message(input); }
  at::Tensor forward(int64_t stage, int64_t input, const at::Tensor& received) override;
  at::Tensor backward(int64_t stage, int64_t input, const at::Tensor& gradient) override;
  at::Tensor input_gradient(int64_t stage, int64_t input, const at::Tensor& gradient) override;
  void weight_gradient(int64_t stage, int64_t input) override;

 private:
  // Of a stage's forward, until its backward.
  struct Open {
    std::optional<LoadBalance> balance;
    ExpertNotes experts;        // the layers hold its address
    at::Tensor received_sE;     // a leaf; undefined for the first stage
    at::Tensor sum;             // what the last stage's backward starts from
    torch::autograd::Edge end;  // what another's starts from; its hidden states are not kept
    // Between the parts of a backward in two; `split` is empty where the stage trains nothing.
    std::optional<SplitBackward> split;
    bool has_input_gradient = false;
  };

  // Ends the last run of a stage for an input.
  void finish(int64_t stage, int64_t input);

  // For the backward of a stage and input.
  // Throws: c10::Error when a unit has changed since the pass began.
  void check_unchanged(int64_t stage, int64_t input) const;

  // What the loss of further tokens adds to what is minimised.
  at::Tensor further_loss(int64_t stage, int64_t input, const at::Tensor& hidden_sE);

  // Finishes the stage's balance.
  void finish_balance(const LoadBalance& balance);

  LiveInputs& inputs_;
  const TrainingParts& parts_;
  bool is_whole_;
  TrainingOutcome& outcome_;
  std::vector<uint32_t> versions_;                    // of the units' buffers, when the pass began
  std::map<std::pair<int64_t, int64_t>, Open> open_;  // by stage and input
};

}  // namespace ringside::engine
