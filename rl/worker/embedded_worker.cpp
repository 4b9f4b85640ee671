#include "rl/worker/embedded_worker.h"

#include "rl/worker/decoder_sampler.h"
#include "rl/worker/embedded_loop.h"
#include "rl/worker/run_loop.h"

namespace ringside::rl {

void run_embedded_worker(const Config& config, const WorkerSettings& settings) {
  DecoderSampler sampler(config, settings.worker_id);
  bridge::WorkerEndpoint endpoint(worker_options(config, settings, sampler.shared_settings()));
  EmbeddedLoop loop(endpoint, sampler, settings,
                    static_cast<std::size_t>(samples_per_batch(config)), settings.now);
  run_loop(loop, endpoint, settings);
  leave(endpoint, loop.ended());
}

}  // namespace ringside::rl
