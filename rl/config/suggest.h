// Suggestions for unknown keys: the nearest known key, and translations of other systems' names.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ringside::rl {

// The known key nearest to an unknown dotted key; "" when none is near. Both the whole dotted names
// and the last components are compared, so a right name in the wrong section is found too.
std::string nearest_key(std::string_view unknown);

// Ringside's name for a key of TRL, axolotl, torchtune, torchtitan, verl, prime-rl or OpenRLHF,
// e.g. "rollout.group_size" for "num_generations" or "actor_rollout_ref.rollout.n"; "" for an
// unknown name.
std::string translate(std::string_view unknown);

// The message for a key of a feature that Ringside does not have ("LoRA and other adapters are not
// supported; ..."); "" for any other key.
std::string absent_feature(std::string_view unknown);

// The whole message for an unknown key, from the functions above: "unknown key; did you mean
// optimizer.learning_rate?".
std::string suggestion(std::string_view unknown);

}  // namespace ringside::rl
