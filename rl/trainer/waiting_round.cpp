#include "rl/trainer/waiting_round.h"

#include <algorithm>
#include <cstdint>

namespace ringside::rl {

std::chrono::milliseconds waiting_round(const Config& config) {
  using std::chrono::milliseconds;
  return std::min(milliseconds(5000),
                  milliseconds(static_cast<int64_t>(config.parallel.collective_timeout_s * 250)));
}

}  // namespace ringside::rl
