// The simulated model and inference server.
#include <algorithm>
#include <utility>

#include "tests/simulator/pictures.h"
#include "tests/simulator/worker.h"

namespace ringside::simulator {
namespace {

using namespace bridge;

constexpr milliseconds kInstall{30};

Rollout rollout_of(const GrantedSample& sample, const std::string& worker, int64_t version) {
  Rollout r;
  r.rollout_id = std::to_string(sample.group_id) + "/" + std::to_string(sample.sample_index) +
                 "/v" + std::to_string(version) + "/" + std::to_string(sample.attempt) + "/" +
                 worker;
  r.attempt = sample.attempt;
  r.group_id = sample.group_id;
  r.group_size = sample.group_size;
  r.sample_index = sample.sample_index;
  r.prompt_ids = {1 + sample.group_id % 1000};
  return r;
}

Rollout completed(const GrantedSample& sample, const std::string& worker, int64_t version,
                  int64_t content, Random& random) {
  Rollout r = rollout_of(sample, worker, version);
  r.completion_ids = {content, sample.sample_index};
  r.logprobs = {-1.0F, -0.5F};
  r.versions = {{version, 0, 2}};
  r.rewards = {{"correct", random.chance(0.5) ? 1.0 : 0.0}};
  if (sample.held_out >= 0) {
    r.rewards = {{"content", static_cast<double>(content)}};
  }
  return r;
}

Rollout failure(const GrantedSample& sample, const std::string& worker, int64_t version) {
  Rollout r = rollout_of(sample, worker, version);
  r.finish_reason = FinishReason::kError;
  return r;
}

}  // namespace

Span draw_hang(World& world, const WorkerPlan& plan) {
  if (plan.hangs == 0 || !world.random.chance(plan.hangs)) {
    return {};
  }
  world.faults.count("sample hangs");
  return world.random.between(Span(seconds(1)), Span(seconds(90)));
}

std::string SimModel::install(const WeightSnapshot& snapshot) {
  world_.judge.installed(snapshot);
  const Manifest& manifest = snapshot.manifest;
  const bool goes_on = trainer_term_ == manifest.trainer_term && is_verified_;
  previous_ = goes_on ? std::pair(version_, content_) : std::pair(int64_t{-1}, int64_t{-1});
  if (trainer_term_ != manifest.trainer_term) {
    for (Begun& begun : unfinished_) {  // their versions mean nothing to a restarted trainer
      begun.with.clear();
    }
  }
  trainer_term_ = manifest.trainer_term;
  version_ = manifest.version;
  content_ = content_of(snapshot);
  is_verified_ = !damages_;
  if (std::exchange(damages_, false)) {
    content_ += 1'000'000;
  }
  busy_ += kInstall;
  return root_of(content_);
}

std::vector<Rollout> SimModel::sample(const std::vector<GrantedSample>& samples, int64_t version,
                                      const std::function<bool()>&) {
  busy_ += world_.random.between(plan_.sample_time / 2, plan_.sample_time * 2);
  busy_ += draw_hang(world_, plan_);
  if (world_.recipe) {
    return by_recipe(samples, version);
  }
  std::vector<Rollout> out;
  for (const GrantedSample& s : samples) {
    const bool fails = world_.random.chance(plan_.failures);
    out.push_back(fails ? failure(s, worker_id_, version)
                        : completed(s, worker_id_, version, content_, world_.random));
    const bool may_span = !fails && s.held_out < 0 && previous_.first >= s.min_version;
    if (may_span && world_.random.chance(0.3)) {
      out.back().completion_ids[1] = content_;
      out.back().completion_ids[0] = previous_.second;
      out.back().versions = {{previous_.first, 0, 1}, {version, 1, 2}};
    }
    if (!fails) {
      illustrate(out.back(), plan_.pictures, world_.random);
    }
  }
  return out;
}

// As DecoderSampler: samples of training may stop, and go on in the next batch.
std::vector<Rollout> SimModel::by_recipe(const std::vector<GrantedSample>& samples,
                                         int64_t version) {
  std::vector<Begun> begun = std::exchange(unfinished_, {});
  for (const GrantedSample& sample : samples) {
    begun.push_back({sample});
  }
  std::vector<Rollout> out;
  for (Begun& one : begun) {
    if (one.with.empty() || one.with.back().version != version) {
      one.with.push_back({trainer_term_, version, content_});
    }
    const bool may_stop = plan_.stops && !world_.recipe->job(one.sample).is_only_scored();
    if (world_.random.chance(plan_.failures)) {
      out.push_back(world_.recipe->failed(one.sample, worker_id_, version));
    } else if (may_stop && world_.random.chance(0.3)) {
      unfinished_.push_back(std::move(one));
    } else {
      out.push_back(
          world_.recipe->completed(one.sample, worker_id_, std::move(one.with), world_.random));
    }
  }
  return out;
}

void SimServer::submit(const GrantedSample& sample, const Manifest&) {
  const Span takes = world_.random.between(plan_.sample_time / 2, plan_.sample_time * 2) +
                     draw_hang(world_, plan_);
  running_.push_back(
      {sample, world_.events.now() + takes, is_up() ? process_ : 0, false, {with_now()}});
}

SampledPart SimServer::with_now() const {
  return {trainer_term_, content_ == installed_ ? version_ : -1, content_};
}

std::vector<rl::ServedAnswer> SimServer::take_answers() {
  std::vector<rl::ServedAnswer> out;
  const Time now = world_.events.now();
  std::erase_if(running_, [&](const Request& r) {
    const bool lost = r.process != process_ || !is_up();
    if (!lost && !r.is_aborted && r.done > now) {
      return false;
    }
    if (lost) {
      out.push_back({r.sample, {1}, Error{Reason::kClosed, "the server has gone"}});
      return true;
    }
    GenerateResult result;
    if (r.is_aborted) {
      result.finish_reason = FinishReason::kAborted;
    } else {
      result.completion_ids = {content_, r.sample.sample_index};
      result.logprobs = {-1.0F, -0.5F};
    }
    if (keeps_requests() && !r.is_aborted) {
      add_spans(r.with, result);
    } else if (plan_.server_labels) {
      result.label = label_;
    }
    if (world_.recipe) {
      answered_[{r.sample.group_id, r.sample.sample_index}] = r.with;
    }
    out.push_back({r.sample, {1}, std::move(result)});
    return true;
  });
  return out;
}

// A token of each version, with the label that the server had.
void SimServer::add_spans(const std::vector<SampledPart>& with, GenerateResult& result) {
  result.completion_ids.clear();
  for (const SampledPart& part : with) {
    const auto begin = std::ssize(result.completion_ids);
    result.completion_ids.push_back(part.content);
    const std::string label = part.version < 0 ? "default" : std::to_string(part.version);
    result.versions.push_back({label, begin, begin + 1});
  }
  result.logprobs.assign(result.completion_ids.size(), -1.0F);
}

// The pool's threads begin every request at once.
std::vector<GrantedSample> SimServer::withdraw() { return {}; }

Status SimServer::install(const std::shared_ptr<const WeightSnapshot>& snapshot) {
  busy_ += kInstall;
  if (!is_up()) {
    return Error{Reason::kClosed, "the server is away"};
  }
  if (world_.random.chance(0.02)) {
    return Error{Reason::kTimeout, "the load took too long"};
  }
  world_.judge.installed(*snapshot);
  content_ = installed_ = content_of(*snapshot);
  version_ = snapshot->manifest.version;
  trainer_term_ = snapshot->manifest.trainer_term;
  label_ = std::to_string(version_);
  for (Request& r : running_) {  // those that are answered already keep what they have
    if (r.done > world_.events.now()) {
      r.with.push_back(with_now());
    }
  }
  return Success{};
}

Status SimServer::verify() {
  busy_ += milliseconds(5);
  if (!is_up()) {
    return Error{Reason::kClosed, "the server is away"};
  }
  return content_ == installed_ ? Status(Success{})
                                : Status(Error{Reason::kChecksum, "log-probs of other weights"});
}

Status SimServer::interrupt() {
  if (!is_up()) {
    return Error{Reason::kClosed, "the server is away"};
  }
  for (Request& r : running_) {
    r.is_aborted = true;
  }
  return Success{};
}

std::vector<Rollout> SimServer::rollouts(std::vector<rl::ServedAnswer> answers, int64_t version) {
  std::vector<Rollout> out;
  for (const rl::ServedAnswer& a : answers) {
    if (world_.recipe) {
      out.push_back(by_recipe(a, version));
      continue;
    }
    const bool fails = world_.random.chance(plan_.failures);
    out.push_back(fails ? failed(a, version)
                        : completed(a.sample, worker_id_, version,
                                    a.result.value().completion_ids.at(0), world_.random));
    if (!fails) {
      illustrate(out.back(), plan_.pictures, world_.random);
    }
  }
  return out;
}

// An answer without spans is of one version.
Rollout SimServer::by_recipe(const rl::ServedAnswer& answer, int64_t version) {
  std::vector<SampledPart> with =
      answered_.extract({answer.sample.group_id, answer.sample.sample_index}).mapped();
  if (world_.random.chance(plan_.failures)) {
    return failed(answer, version);
  }
  if (answer.result.value().versions.empty()) {
    with.front().version = version;
  }
  return world_.recipe->completed(answer.sample, worker_id_, std::move(with), world_.random);
}

Rollout SimServer::failed(const rl::ServedAnswer& answer, int64_t version) {
  return world_.recipe ? world_.recipe->failed(answer.sample, worker_id_, version)
                       : failure(answer.sample, worker_id_, version);
}

void SimServer::restart(Span away) {
  ++process_;
  content_ = 0;
  label_ = "default";
  up_since_ = world_.events.now() + away;
}

}  // namespace ringside::simulator
