// What an inference server's answer says of the weights that it was sampled from. Pure functions.
// Torch-free.
#pragma once

#include <cstdint>

#include "rollout_bridge/servers/inference_server.h"

namespace ringside::rl {

// Whether the answer carries a label of other weights than `version`. False for an answer without
// labels.
bool denies_version(const bridge::GenerateResult& result, int64_t version);

// Whether the answer is labelled with `version`, by its own label or by spans whose labels are
// versions.
bool names_version(const bridge::GenerateResult& result, int64_t version);

}  // namespace ringside::rl
