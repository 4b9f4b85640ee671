#include "rl/worker/link_events.h"

#include <stdexcept>
#include <utility>

#include "rl/report/log.h"
#include "rl/worker/trainer_address.h"

namespace ringside::rl {

LinkEvents::LinkEvents(WorkerSettings settings) : settings_(std::move(settings)) {}

void LinkEvents::handle(const bridge::Connected& connected) const {
  log::info("connected to run " + connected.run_id + ", trainer term " +
            std::to_string(connected.trainer_term));
}

void LinkEvents::handle(const bridge::RolloutRejected& rejected) const {
  log::warn("rollout " + rejected.rollout_id + " was rejected: " + rejected.reason + ", " +
            rejected.detail);
}

void LinkEvents::handle(const bridge::Ended& ended) {
  log::info("the trainer ended the run: " + ended.reason);
  ended_ = true;
}

void LinkEvents::handle(const bridge::Failed& failed) const {
  throw std::runtime_error("the trainer refuses this worker: " + failed.reason + ", " +
                           failed.detail);
}

void LinkEvents::handle(const bridge::Disconnected& disconnected) {
  // The END message of a trainer that has exited may have been lost with the connection. The
  // endpoint file records the end too.
  const auto found =
      settings_.endpoint_file.empty() ? std::nullopt : current_trainer(settings_.endpoint_file);
  ended_ = found && found->ended;
  log::warn("disconnected: " + disconnected.why + (ended_ ? "; the run is over" : ""));
}

}  // namespace ringside::rl
