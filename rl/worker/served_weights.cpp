#include "rl/worker/served_weights.h"

#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "rl/config/adapter_names.h"
#include "rl/data/data_order.h"
#include "rl/report/log.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {
namespace {

using bridge::Error;
using bridge::Reason;
using bridge::Status;
using bridge::Success;

// Any text works as long as both sides use the same. Random ids cover more of the embedding than
// natural text.
std::vector<int64_t> probe_text(int64_t tokens, int64_t vocab_size) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<int64_t>(mix_seed({uint64_t{17}, static_cast<uint64_t>(i)}) %
                                       static_cast<uint64_t>(vocab_size)));
  }
  return ids;
}

// Most rounds of the probe if samples come without log-probs.
constexpr std::size_t kSampledRounds = 4;

double mean_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    sum += std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
  }
  return sum / static_cast<double>(b.size());
}

void check_pause(const ServerConfig& options, const bridge::Capabilities& can) {
  if (options.pause == ServerPause::kKeep && !(can.pause_keep && can.version_spans)) {
    throw std::runtime_error(
        "rollout.server_options.pause = keep: the server at " + options.url +
        " does not say which token was sampled under which weights; use drain or abort");
  }
  if (options.pause == ServerPause::kAbort && !can.pause_abort) {
    throw std::runtime_error("rollout.server_options.pause = abort: the server at " + options.url +
                             " cannot abort requests; use drain");
  }
}

}  // namespace

ServedWeights::ServedWeights(const Config& config, bridge::InferenceServer& server)
    : options_(config.rollout.server_options),
      server_(server),
      shadow_(config),
      // Adapters are installed on top of a base that would be read from disk for each version.
      keeps_copy_(config.lora.publish == LoraPublish::kAdapter),
      route_(make_weight_route(config, server)),
      adapters_(adapter_names(config.lora)),
      probe_ids_(probe_text(options_.probe_tokens,
                            load_model_config(config, config.model.path).vocab_size)) {
  check_pause(options_, server.capabilities());
  if (adapters_.empty()) {
    adapters_.emplace_back();
  }
}

Status ServedWeights::pause() {
  const bridge::Capabilities can = server_.capabilities();
  if (options_.pause == ServerPause::kKeep) {
    return server_.pause(bridge::PausePolicy::kKeep);
  }
  if (options_.pause == ServerPause::kDrain && can.pause_drain) {
    return server_.pause(bridge::PausePolicy::kDrain);
  }
  // With drain none of our requests is running any more. Requests of other clients are not waited
  // for.
  return can.pause_abort ? server_.pause(bridge::PausePolicy::kAbort) : Status(Success{});
}

Status ServedWeights::interrupt() { return server_.pause(bridge::PausePolicy::kAbort); }

Status ServedWeights::install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) {
  if (route_->restarts_server()) {
    const Status started = load_and_probe(snapshot);
    return started ? verify() : started;
  }
  const Status paused = pause();
  Status loaded = paused ? load_and_probe(snapshot) : paused;
  // In any case: a server that is not resumed blocks all of its clients.
  const Status resumed = server_.resume();
  if (!loaded) {
    return loaded;
  }
  return resumed ? verify() : resumed;
}

Status ServedWeights::load_and_probe(
    const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) {
  try {
    root_hash_ = shadow_.install(snapshot);
    if (root_hash_ != snapshot->manifest.root_hash) {
      return Error{Reason::kChecksum, "installed weights have root " + root_hash_ + ", version " +
                                          std::to_string(snapshot->manifest.version) + " has " +
                                          snapshot->manifest.root_hash};
    }
    for (const std::string& adapter : adapters_) {
      expected_[adapter] = shadow_.score(probe_ids_, 1.0, adapter);
    }
    Status loaded = route_->load(server_, snapshot, shadow_);
    if (!keeps_copy_) {
      shadow_.release();
    }
    return loaded;
  } catch (const std::exception& error) {  // disk full, model of another shape
    return Error{Reason::kInvalidField, error.what()};
  }
}

std::vector<float> ServedWeights::score(const std::vector<int64_t>& ids, double temperature,
                                        const std::string& adapter) {
  keeps_copy_ = true;
  return shadow_.score(ids, temperature, adapter);
}

bridge::Result<double> ServedWeights::distance_by_scores(const std::string& adapter) {
  const auto scores = server_.score_under(adapter, probe_ids_);
  if (!scores) {
    return scores.error();
  }
  return mean_distance(scores.value(), expected_[adapter]);
}

bridge::Result<double> ServedWeights::distance_by_samples(const std::string& adapter) {
  // One token after each prefix of the probe's text: a longer sample free of partial characters may
  // never come.
  std::vector<float> given, expected;
  for (std::size_t i = 0;
       i < kSampledRounds * probe_ids_.size() && given.size() < probe_ids_.size(); ++i) {
    const auto length = static_cast<std::ptrdiff_t>(1 + i % probe_ids_.size());
    bridge::GenerateRequest request;
    request.prompt_ids.assign(probe_ids_.begin(), probe_ids_.begin() + length);
    request.max_tokens = 1;
    request.seed = static_cast<int64_t>(i);
    request.request_id = "probe-" + std::to_string(i);
    request.cache_salt = "probe";
    request.adapter = adapter;
    const auto answer = server_.generate(request);
    if (!answer) {
      return answer.error();
    }
    if (!answer.value().logprobs_complete || answer.value().completion_ids.empty()) {
      continue;
    }
    std::vector<int64_t> ids = request.prompt_ids;
    ids.push_back(answer.value().completion_ids.front());
    given.push_back(answer.value().logprobs.front());
    expected.push_back(score(ids, 1.0, adapter).back());
  }
  if (given.empty()) {
    return Error{Reason::kUnsupported, options_.url + ": no probe came back with a log-prob"};
  }
  return mean_distance(given, expected);
}

Status ServedWeights::verify() {
  for (const std::string& adapter : adapters_) {
    if (Status verified = verify(adapter); !verified) {
      return verified;
    }
  }
  return Success{};
}

Status ServedWeights::verify(const std::string& adapter) {
  const auto distance =
      server_.capabilities().score ? distance_by_scores(adapter) : distance_by_samples(adapter);
  if (!distance) {
    return distance.error();
  }
  if (distance.value() <= options_.probe_tolerance) {
    return Success{};
  }
  char text[320];
  std::snprintf(text, sizeof text,
                ": log-probs of the probe are %.3g from those of the published weights on average, "
                "above rollout.server_options.probe_tolerance %.3g: the server has other weights, "
                "or another dtype (a pretrained model in bfloat16: 0.09)",
                distance.value(), options_.probe_tolerance);
  return Error{Reason::kChecksum,
               options_.url + (adapter.empty() ? "" : ", adapter " + adapter) + text};
}

}  // namespace ringside::rl
