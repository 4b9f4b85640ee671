// Micro-batches on the device: uploads the inputs of a pass one after another, the next one while
// the model computes with the current one. Tensor-parallel ranks have the same inputs; what belongs
// to rows of the residual stream is uploaded for the rows of this rank.
//
// Shapes: s = tokens of this rank, n = its loss entries, S = tokens of its ring share, L = layers
// with experts, K = experts a token.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/device/upload.h"
#include "engine/nn/tensor_rows.h"
#include "engine/ops/kept_sets.h"
#include "engine/runner/columns.h"
#include "engine/runner/tensor_inputs.h"
#include "sp/batch/collator.h"

namespace ringside::engine {

// One micro-batch and the caller's columns, on the host.
struct ModelInput {
  const sp::MicroBatch* batch = nullptr;
  at::Tensor temperature_n;  // divides the logits; a value head ignores it
  Columns columns = {};      // what the loss of this input reads
  // Experts that each token shall use, uint8 or int16; undefined: the routers choose. Every rank
  // has the routes of its tokens, if only of none, or no rank has any.
  at::Tensor routes_sLK = {};
  bool records_routes = false;  // the output brings those that were used
  KeptSets kept = {};           // of the entries, on the host: see HeadInput
  bool scores_whole = false;
};

// The same on the device.
struct DeviceBatch {
  at::Tensor ids_s;
  at::Tensor positions_s;        // or [3, s] where documents have images
  at::Tensor copies_s;           // of this tensor rank's rows
  at::Tensor share_positions_S;  // or [3, S]; undefined unless the micro-batch has them
  at::Tensor source_n;           // of entries on this tensor rank's rows, and among these
  at::Tensor target_n;
  at::Tensor temperature_n;
  at::Tensor routes_sLK;  // of this tensor rank's rows; undefined: the routers choose
  bool records_routes = false;
  KeptSets kept = {};
  bool scores_whole = false;
  // For the layer that predicts a further token; undefined unless documents have kNextIdField.
  at::Tensor next_s, further_source_m, further_target_m;
  Columns columns;
  RowParts rows = {};  // of tensor-parallel ranks
  EntryParts entries = {};
};

// Thread safety: none.
class DeviceBatches {
 public:
  // Starts the first upload. `inputs` must outlive the object. stream: of make_side_stream(device).
  // tensor: the tensor-parallel ranks; null: there is one.
  // Throws: as Upload; c10::Error on an entry whose source is no row.
  DeviceBatches(std::span<const ModelInput> inputs, c10::Device device,
                const std::optional<c10::Stream>& stream,
                std::shared_ptr<sp::Communicator> tensor = nullptr);

  // The next input, in order. Starts the upload of the one after it.
  // Blocks: never; the current stream waits for its upload.
  // Throws: c10::Error when all inputs were taken, or as Upload for the next one.
  DeviceBatch next();

 private:
  // What the upload in progress brings beside tensors.
  struct Divided {
    RowParts rows;
    TensorEntries entries;
    KeptSets kept;
  };
  void start();

  std::span<const ModelInput> inputs_;
  c10::Device device_;
  std::optional<c10::Stream> stream_;
  std::shared_ptr<sp::Communicator> tensor_;
  Divided divided_;
  std::size_t started_ = 0;
  std::optional<Upload> upload_;  // of the input that next() returns
};

}  // namespace ringside::engine
