// A DirectTrainer in a folder of its own that has published version 0, with workers that are ready.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/rollout_bridge/direct_trainer.h"

namespace ringside::bridge::test {

struct OwnFolder {
  TempDir dir;
};

class StartedTrainer : private OwnFolder, public DirectTrainer {
 public:
  // workers: id and capacity of each. change: of the options.
  explicit StartedTrainer(const std::vector<std::pair<std::string, int64_t>>& workers,
                          const std::function<void(TrainerOptions&)>& change = {})
      : DirectTrainer(changed(trainer_options(dir), change)) {
    publish(0);
    for (const auto& [id, capacity] : workers) {
      bring_in(id, 0, capacity);
    }
  }

 private:
  static TrainerOptions changed(TrainerOptions options,
                                const std::function<void(TrainerOptions&)>& change) {
    if (change) {
      change(options);
    }
    return options;
  }
};

}  // namespace ringside::bridge::test
