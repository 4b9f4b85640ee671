// Count of a worker's equal deaths in a row.
#pragma once

#include <cstdint>
#include <string>

#include "tools/launch/child_process.h"

namespace ringside::tools {

// Deaths are equal if the exit status and the last output (ignoring numbers) are the same, or the
// signal, and the run made no progress between them. After three such exits a restart does not
// help. Signals may come from outside, so they are allowed five times. Thread safety: none.
class DeathCount {
 public:
  // Counts a death. progress: a number that changes whenever the run makes progress. Returns the
  // number of equal deaths in a row once a restart does not help, before that 0.
  int add(const ExitStatus& status, const std::string& last_words, int64_t progress);

 private:
  std::string how_;
  int64_t progress_ = 0;
  int count_ = 0;
};

}  // namespace ringside::tools
