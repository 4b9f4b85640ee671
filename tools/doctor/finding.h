// One line of `ringside doctor`.
#pragma once

#include <string>

namespace ringside::tools {

enum class Health {
  kGood,
  kWarning,  // may stop or slow a large run
  kBad,      // stops the run
};

struct Finding {
  Health health = Health::kGood;
  std::string what;    // subject and value: "open files: 1024"
  std::string advice;  // what to do about it; "" if it is good
};

}  // namespace ringside::tools
