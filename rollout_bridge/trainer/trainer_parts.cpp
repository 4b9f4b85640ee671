#include "rollout_bridge/trainer/trainer_parts.h"

namespace ringside::bridge {
TrainerParts::TrainerParts(const TrainerOptions& trainer_options)
    : options(trainer_options),
      journal({options.journal, options.run_id, options.limits}),
      images(options.images),
      ledger({options.max_attempts, options.trainer_term, options.policy}, journal.consumed(),
             journal.granted()),
      evaluation(ledger.work(), options.max_attempts, options.trainer_term),
      published(options.run_id, options.trainer_term, options.limits),
      budget(static_cast<int64_t>(std::min<uint64_t>(options.max_queued_bytes, INT64_MAX)),
             options.window_bytes) {}

}  // namespace ringside::bridge
