// Rollouts from prime-rl's orchestrator in place of Ringside's own workers: this trainer stands
// where prime-rl's own would.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rl/config/config.h"
#include "rl/rollouts/rollout_source.h"

namespace ringside::rl {

// Each message of the publisher at `address` (tcp://HOST:PORT, see
// rollout_bridge/prime_rl/stream.h) is one step, whatever its number of samples; the publisher must
// be set to one data rank. A message that is refused, as one with a rollout that breaks a rule of
// check_recorded(), is counted, said with its reason, and
// skipped; the step then trains on the next. Nothing is journalled and the publisher sends nothing
// twice: after a restart, what was under way is lost. The wire names no weight version; rollouts
// carry that of the newest weights.
//
// With weights.directory, which must be prime-rl's OUTPUT_DIR/broadcasts, publish() hands every
// version over as prime-rl's trainer does (PrimeRlBroadcast), and so waits for the orchestrator;
// without, weights are not published. last_step: versions that no step up to it would sample from
// are not handed over.
//
// Throws std::invalid_argument for another address, and unless rollout.group_size is 1 and
// algorithm.advantage.estimator is given: the wire carries advantages, no rewards and no groups.
std::unique_ptr<RolloutSource> make_prime_rl_source(const std::string& address,
                                                    const Config& config, int64_t last_step);

}  // namespace ringside::rl
