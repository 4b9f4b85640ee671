// Matrices of a model's layers, which Muon updates: of projections, routers and experts. Embedding,
// head, norms, biases, convolutions and a vision tower are none.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/models/headed_model.h"

namespace ringside::engine {

// For each of model.units() the places of its matrices among the unit's specs(), ascending. A
// parameter of three dims is one for each expert.
std::vector<std::vector<std::size_t>> layer_matrices(HeadedModel& model);

}  // namespace ringside::engine
