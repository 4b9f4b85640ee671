// Rollout source for prime-rl's orchestrator, used in place of Ringside's own workers. This trainer
// takes the place of prime-rl's trainer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rl/config/config.h"
#include "rl/rollouts/rollout_source.h"

namespace ringside::rl {

// Each message of the publisher at `address` (tcp://HOST:PORT, see
// rollout_bridge/prime_rl/stream.h) is one step, whatever its number of samples. The publisher must
// be set to one data rank. A message is rejected if, for example, one of its rollouts breaks a rule
// of check_recorded(). A rejected message is counted, logged with its reason and skipped; the step
// then trains on the next message. There is no journal and the publisher resends nothing: a restart
// loses the messages in flight. The messages carry no weight version; rollouts get the version of
// the newest weights.
//
// With weights.directory, which must be prime-rl's OUTPUT_DIR/broadcasts, publish() hands over
// every version as prime-rl's trainer does (PrimeRlBroadcast) and waits for the orchestrator, at
// most half of parallel.collective_timeout_s.
// Without it, weights are not published. last_step: versions from which no step up to last_step
// would sample are not handed over.
//
// Throws: std::invalid_argument for another form of address, and unless rollout.group_size is 1 and
// algorithm.advantage.estimator is given, because the messages carry advantages but no rewards and
// no groups; what load_model_config throws.
std::unique_ptr<RolloutSource> make_prime_rl_source(const std::string& address,
                                                    const Config& config, int64_t last_step);

}  // namespace ringside::rl
