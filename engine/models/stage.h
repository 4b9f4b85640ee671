// Stage of a decoder: the run of its layers that one place of a pipeline holds, and which ends of
// the model. Indices of layers and names of parameters are those of the whole model everywhere.
//
// Tied embeddings whose ends lie in two stages are one parameter with two copies: the stage that
// scores holds the embedding too, by its name, as the unit of its head. The gradient of the
// parameter is the sum of the gradients of both copies. Who trains such stages adds them before the
// optimizer's step, so that both copies stay equal; the gradient norm, a checkpoint and a
// publication count the parameter once, as that of the stage that embeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/layers/model_config.h"
#include "sp/layout/range.h"

namespace ringside::engine {

struct Stage {
  sp::Range layers;    // of the model's; may be empty at an end of the model
  bool embeds = true;  // has the embedding, so its input are token ids
  bool scores = true;  // has the final norm and the head
  // Whether its head is the vocabulary's, so that it has that matrix. A value model's is not.
  bool vocabulary = true;

  // Whether the layer that predicts a further token is here, if the model has it.
  bool predicts_further(const ModelConfig& config) const {
    return config.on_disk.predicts_further && scores && vocabulary;
  }

  // The place of a layer of the model, one of the stage's, among the stage's.
  std::size_t place(int64_t layer) const { return static_cast<std::size_t>(layer - layers.begin); }
  bool operator==(const Stage&) const = default;
};

// All layers and both ends.
Stage whole_stage(const ModelConfig& config);

// The stages of a model that is cut before each of the layers `cuts`, in order. The first one
// embeds, the last one scores. A cut before layer 0 leaves the embedding a stage of its own, and
// one behind the last layer the head.
// Throws: c10::Error unless the cuts ascend within the model and every stage has a part of it.
std::vector<Stage> cut_stages(const ModelConfig& config, const std::vector<int64_t>& cuts);

// Throws: c10::Error unless it is a part of the model: layers out of the model's, of which a stage
// that embeds has the first and one that scores the last, if it has any; at least one layer or end.
void check_stage(const ModelConfig& config, const Stage& stage);

// Whether the stage scores with a copy of an embedding that another stage embeds with.
// config: of the whole model.
bool copies_embedding(const ModelConfig& config, const Stage& stage);

}  // namespace ringside::engine
