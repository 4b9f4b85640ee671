// Parameter units of a model whose stages lie on several ranks: numbers of all units of the model
// from those of each rank, and embeddings that two stages share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/models/headed_model.h"
#include "engine/models/pipeline.h"

namespace ringside::engine {

// Of a trained model; its units are those of HeadedModel::units(). Without a pipeline all functions
// return what they are given and send nothing.
// Thread safety: none.
class PipelineUnits {
 public:
  // The model must outlive the object. control: the line's group for host numbers.
  PipelineUnits(HeadedModel& model, std::shared_ptr<sp::Communicator> control);

  // Whether the unit is the copy of an embedding that another stage embeds with. It counts as a
  // part of that stage.
  bool is_copy(const ParamUnit* unit) const { return copy_ != nullptr && unit == copy_; }

  // A number of each unit of this rank -> of each unit of the model, in the order of its stages,
  // which is the order of the units of the whole model; 0 for a copy.
  // Shapes: fp64 [units of the rank] -> [units of the model], on the device.
  // Collective over: the pipeline's line. The first call exchanges how many units the ranks have.
  at::Tensor of_model(const at::Tensor& of_rank);

  // The same numbers added over all units of the model, [1].
  // Collective over: the pipeline's line.
  at::Tensor sum_of_model(const at::Tensor& of_rank) const;

  // Sets the gradients of both copies of an embedding to their sum, the embedding's part first.
  // Call it when gradients are summed over the ranks of their stage. Collective over: the first and
  // the last rank of the line, where there are two copies.
  void add_copies() const;

 private:
  // Where the units of this rank's stages lie among the model's.
  struct Places {
    std::vector<int64_t> begins, counts;  // of each stage of the rank
    int64_t all = 0;                      // units of the model; 0: not known yet
  };
  Places exchange_places() const;

  HeadedModel& model_;
  const Pipeline* pipeline_;        // null: none
  ParamUnit* embedding_ = nullptr;  // of a model with a copy, here
  ParamUnit* copy_ = nullptr;       // here
  int64_t peer_ = -1;               // the rank with the other one; -1: both are here, or none
  std::shared_ptr<sp::Communicator> control_;
  Places places_;
};

}  // namespace ringside::engine
