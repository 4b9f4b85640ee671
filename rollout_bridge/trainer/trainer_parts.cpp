#include "rollout_bridge/trainer/trainer_parts.h"

namespace ringside::bridge {
namespace {

Journal::Options journal_options(const TrainerOptions& o) {
  return {o.journal_directory, o.run_id, o.fsync, o.fsync_interval, o.journal_compact_bytes,
          o.journal_max_bytes, o.limits, o.files};
}

}  // namespace

TrainerParts::TrainerParts(const TrainerOptions& trainer_options)
    : options(trainer_options),
      journal(journal_options(options)),
      ledger({options.max_attempts, options.trainer_term, options.policy}, journal.consumed(),
             journal.granted()),
      evaluation(ledger.work(), options.max_attempts, options.trainer_term),
      published(options.run_id, options.trainer_term, options.limits),
      budget(static_cast<int64_t>(std::min<uint64_t>(options.max_queued_bytes, INT64_MAX)),
             options.window_bytes) {}

}  // namespace ringside::bridge
