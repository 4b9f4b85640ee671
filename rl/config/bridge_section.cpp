#include "rl/config/sections.h"

namespace ringside::rl {
namespace {

void add_bridge(FieldList& fields, BridgeConfig& bridge) {
  fields.text(
      "bridge.rollout_address", bridge.rollout_address,
      "where the trainer binds the socket for rollouts and control; port 0 = any free port");
  fields.text("bridge.weights_address", bridge.weights_address,
              "where the trainer binds the socket for weights");
  fields.real("bridge.heartbeat_s", bridge.heartbeat_s, above(0), "seconds between heartbeats");
  fields.real(
      "bridge.worker_timeout_s", bridge.worker_timeout_s, above(0),
      "a worker that sends nothing for this long is considered dead; its samples are reassigned");
  fields.real(
      "bridge.pause_timeout_s", bridge.pause_timeout_s,
      NumberRange{.low = 0, .high = 1e9, .above = true},
      "so is a worker that reports itself paused for this long (server unverified or loading)");
  fields.real("bridge.assignment_timeout_s", bridge.assignment_timeout_s,
              NumberRange{.low = 0.001, .high = 1e9},
              "samples not sent for this long are reassigned to other workers, if any is ready");
  fields.integer("bridge.max_queued_mb", bridge.max_queued_mb, between(1, 1e9),
                 "MiB of rollouts in the trainer's memory, with those that may be sent now; beyond "
                 "it workers wait");
  fields.choice(
      "bridge.journal_fsync", bridge.journal_fsync,
      "always = before each acknowledgement, batch = once per batch, never = the kernel decides");
  fields.integer(
      "bridge.journal_max_mb", bridge.journal_max_mb, between(0, 1e9),
      "MiB of the journal on disk; beyond it rollouts wait for a checkpoint; 0 = no limit");
  fields.section(
      "bridge.curve",
      "key files of `ringside keygen`; empty = no keys, trainer and workers on one machine");
  fields.path("bridge.curve.trainer_secret", bridge.curve.trainer_secret, "the trainer's NAME.key");
  fields.path("bridge.curve.allowed_workers", bridge.curve.allowed_workers,
              "file of the public keys that may connect, one per line");
  fields.path("bridge.curve.worker_secret", bridge.curve.worker_secret, "a worker's own NAME.key");
  fields.path("bridge.curve.trainer_public", bridge.curve.trainer_public,
              "NAME.pub of the trainer that the worker connects to");
}

void add_weights(FieldList& fields, WeightsConfig& weights) {
  fields.choice_or_model(
      "weights.publish_dtype", weights.publish_dtype,
      {DType::kFloat32, DType::kBFloat16, DType::kFloat64},
      "of the weights sent to workers: model (= model.dtype), float32, bfloat16, float64");
  fields.choice(
      "weights.encoding", weights.encoding,
      "auto = changes since the worker's version, where that is smaller; dense = whole tensors");
  fields.integer("weights.full_every", weights.full_every, at_least(1),
                 "auto: every this many versions send whole tensors");
  fields.flag("weights.shared_memory", weights.shared_memory,
              "workers of the same user on this machine read weights from shared memory; false = "
              "network only");
  fields.path("weights.directory", weights.directory,
              "also write each version to disk as a Hugging Face directory e<trainer "
              "term>-v<version> here; \"\" = do not");
  fields.integer("weights.keep", weights.keep, at_least(0),
                 "how many of these directories to keep, the newest; 0 = all");
}

void check_curve(const CurveConfig& curve, std::vector<Mistake>& mistakes) {
  if (curve.trainer_secret.empty() != curve.allowed_workers.empty()) {
    mistakes.push_back({"bridge.curve.allowed_workers",
                        "and bridge.curve.trainer_secret go together: a trainer with keys needs "
                        "to know whose it takes; expected both or neither"});
  }
  if (curve.worker_secret.empty() != curve.trainer_public.empty()) {
    mistakes.push_back({"bridge.curve.trainer_public",
                        "and bridge.curve.worker_secret go together: a worker with keys needs to "
                        "know its trainer's; expected both or neither"});
  }
}

}  // namespace

void add_bridge_sections(FieldList& fields, BridgeConfig& bridge, WeightsConfig& weights) {
  add_bridge(fields, bridge);
  add_weights(fields, weights);
  fields.may_change_on_resume("bridge.");
  fields.may_change_on_resume("weights.");
}

void check_bridge_sections(const Config& c, std::vector<Mistake>& mistakes) {
  check_curve(c.bridge.curve, mistakes);
  if (c.bridge.worker_timeout_s <= c.bridge.heartbeat_s) {
    mistakes.push_back({"bridge.worker_timeout_s",
                        "is " + text_of(c.bridge.worker_timeout_s) +
                            ", but heartbeats come every bridge.heartbeat_s = " +
                            text_of(c.bridge.heartbeat_s) + " s; expected more than that"});
  }
  if (c.bridge.pause_timeout_s <= c.bridge.heartbeat_s) {
    mistakes.push_back({"bridge.pause_timeout_s",
                        "is " + text_of(c.bridge.pause_timeout_s) +
                            ", but a worker reports the end of its pause only in a heartbeat, "
                            "every bridge.heartbeat_s = " +
                            text_of(c.bridge.heartbeat_s) + " s; expected more than that"});
  }
  if (c.bridge.rollout_address == c.bridge.weights_address &&
      !c.bridge.rollout_address.ends_with(":0")) {
    mistakes.push_back({"bridge.weights_address", "equals bridge.rollout_address " +
                                                      c.bridge.rollout_address +
                                                      "; expected an address of its own"});
  }
}

}  // namespace ringside::rl
