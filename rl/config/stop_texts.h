// The texts of rollout.stop. Torch-free.
#pragma once

#include <string>
#include <vector>

namespace ringside::rl {

// One text as it is; a JSON list of texts, ["a", "b"], as several; none for "".
// Throws: std::invalid_argument for a JSON list that is empty or holds anything but non-empty
// texts.
std::vector<std::string> stop_texts(const std::string& stop);

}  // namespace ringside::rl
