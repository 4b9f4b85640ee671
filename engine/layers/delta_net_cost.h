// Cost of a gated delta net, predicted from shapes.
#pragma once

#include "engine/layers/cost.h"
#include "engine/layers/model_config.h"

namespace ringside::engine {

// Without the norm before it and the gradient of its output projection.
Cost delta_net_cost(const DeltaNetConfig& net, const MixerShape& shape);

// Heads are exchanged; maps of states are small beside them.
MixerWork delta_net_work(const sp::StateShape& net, const RankGrid& grid);

}  // namespace ringside::engine
