// What to say about a key nobody knows: the nearest known key, and the translation of a
// neighbouring system's word.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ringside::rl {

// The known key nearest to a dotted unknown one, "" when none is near: the whole dotted names and
// the last components are compared, so a right name in the wrong section is found too.
std::string nearest_key(std::string_view unknown);

// What a key of TRL, axolotl, torchtune, torchtitan, verl, prime-rl or OpenRLHF is called here,
// e.g. "rollout.group_size" for "num_generations" or "actor_rollout_ref.rollout.n"; "" when the
// word is none of theirs.
std::string translate(std::string_view unknown);

// What to say about a key of a feature that Ringside does not have ("LoRA and other adapters are
// not supported; ..."), "" when it names none.
std::string absent_feature(std::string_view unknown);

// The sentence that these make: "unknown key; did you mean optimizer.learning_rate?".
std::string suggestion(std::string_view unknown);

}  // namespace ringside::rl
