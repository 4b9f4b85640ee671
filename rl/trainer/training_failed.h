// Error that ends training on every rank.
#pragma once

#include <stdexcept>

namespace ringside::rl {

// Training cannot continue. Every rank throws it for the same reason.
class TrainingFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ringside::rl
