#include "rl/rollouts/live_source.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/device/side_stream.h"
#include "rl/config/environment_choice.h"
#include "rl/config/eval_sets.h"
#include "rl/config/record_choices.h"
#include "rl/config/task.h"
#include "rl/data/curriculum.h"
#include "rl/data/held_out_prompts.h"
#include "rl/data/prompt_set.h"
#include "rl/data/record_set.h"
#include "rl/data/rollout_rewards.h"
#include "rl/publish/job_thread.h"
#include "rl/publish/version_directories.h"
#include "rl/publish/weight_snapshot.h"
#include "rl/report/event_log.h"
#include "rl/report/log.h"
#include "rl/rollouts/granted_prompts.h"
#include "rl/rollouts/restart_log.h"
#include "rl/rollouts/rollout_admission.h"
#include "rl/rollouts/rollout_intake.h"
#include "rl/rollouts/trainer_options.h"
#include "rl/sampling/prompt_scorer.h"
#include "rl/setup/endpoint_file.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/shared_settings.h"
#include "rollout_bridge/trainer/trainer_term.h"
#include "rollout_bridge/transport/bind_error.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kWhileEncoding{20};  // interval of polls for rollouts
constexpr milliseconds kBetweenEvents{200};
constexpr milliseconds kEvaluationSlice{50};  // between looks at an evaluation's progress
constexpr milliseconds kNobody{5000};   // wait for a worker that evaluates, before it is logged
constexpr milliseconds kFinish{30000};  // wait for a version that is being encoded

std::optional<VersionDirectories> version_directories(const Config& config) {
  if (config.weights.directory.empty()) {
    return std::nullopt;
  }
  return VersionDirectories(config.weights.directory, config.weights.keep,
                            scalar_type(published_dtype(config)), config.model.path);
}

StepRules step_rules(const Config& config, int64_t restored_version,
                     const std::shared_ptr<Curriculum>& curriculum) {
  StepRules rules;
  rules.prompts_per_step = config.rollout.prompts_per_step;
  rules.group_size = sampled_group_size(config);
  rules.max_staleness = config.algorithm.max_staleness;
  rules.first_step = restored_version + 1;
  set_stragglers(rules, config.rollout);
  if (curriculum) {
    rules.chosen_groups = [curriculum](int64_t step) { return curriculum->groups_of(step); };
  }
  if (config.algorithm.dynamic_sampling == DynamicSampling::kRefill) {
    rules.refill_rounds = config.algorithm.dynamic_sampling_rounds;
    rules.total_reward = [recipe = parse_rewards(config.rollout.reward),
                          config](const bridge::Rollout& rollout) {
      return compared_by(rollout, recipe, config);
    };
  }
  return rules;
}

std::optional<engine::Tokenizer> known_tokenizer(const Config& config) {
  const auto path = std::filesystem::path(config.model.path) / "tokenizer.json";
  return std::filesystem::exists(path) ? std::optional(engine::Tokenizer::load(path))
                                       : std::nullopt;
}

// The prompts of the groups, if this machine has them and can determine which are sampled. Workers,
// with the data, may be elsewhere.
PromptSet known_prompts(const Config& config, const std::optional<engine::Tokenizer>& tokenizer) {
  const std::string& path = config.data.train;
  const bool here = data_files_exist(path);
  if (here && tokenizer) {
    return load_prompt_set(path, config, *tokenizer);
  }
  log::info(std::string(path.empty() ? "data.train is empty"
                        : here       ? "model.path has no tokenizer.json"
                                     : "data.train is not on this machine") +
            ": only the length of a rollout's prompt is checked");
  return {};
}

std::optional<std::vector<int64_t>> known_stop_ids(
    const Config& config, const engine::ModelConfig& model,
    const std::optional<engine::Tokenizer>& tokenizer) {
  const bool from_model = config.rollout.stop.empty();
  if (from_model ? model.eos_token_ids.empty() : !tokenizer) {
    return std::nullopt;  // unknown here, so not compared with the workers'
  }
  return from_model ? model.eos_token_ids : stop_ids(config, model, *tokenizer);
}

// What the trainer knows of the prompts that workers sample.
struct KnownPrompts {
  std::unique_ptr<GrantedAnswers> answers;  // null: not known here
  std::vector<OrderPart> parts;             // none: as above
};

// Sets the admission rules of rollouts and workers.
KnownPrompts set_admission(bridge::TrainerOptions& options, const Config& config) {
  const engine::ModelConfig model = load_model_config(config, config.model.path);
  auto tokenizer = known_tokenizer(config);
  auto prompts = known_prompts(config, tokenizer);
  const HeldOutPrompts held_out =
      tokenizer ? held_out_of_workers(config, *tokenizer) : HeldOutPrompts();
  options.settings =
      shared_settings(config, model, prompts, held_out, known_stop_ids(config, model, tokenizer));
  const bool known_ids = !has_sessions(config.rollout);  // sessions write prompts of their own
  std::vector<std::vector<int64_t>> held_out_ids;
  for (const HeldOutSet& set : held_out.sets()) {
    for (std::size_t i = 0; known_ids && i < set.prompts.size(); ++i) {
      held_out_ids.push_back(prompt_ids(set.prompts[i], prompt_rules(config), *tokenizer));
    }
  }
  std::unique_ptr<GrantedPrompts> granted;
  KnownPrompts known;
  if (!prompts.prompts.empty() && tokenizer) {
    known = {std::make_unique<GrantedAnswers>(config, prompts), prompts.parts};
    if (known_ids) {
      granted = std::make_unique<GrantedPrompts>(config, std::move(prompts), std::move(*tokenizer));
    }
  }
  std::optional<ImageRules> images;
  if (!config.data.image_key.empty()) {
    images = read_image_rules(config);
  }
  options.admission = std::make_shared<LiveAdmission>(
      config, model_bounds(model), std::move(granted), std::move(held_out_ids), std::move(images));
  return known;
}

// Throws: std::runtime_error when records choose something and are not known here.
void check_records_known(const Config& config, const KnownPrompts& known) {
  if (const auto choices = record_choices(config); !choices.empty() && !known.answers) {
    throw std::runtime_error(choices.front().asked_by +
                             " is set, but the trainer cannot read the records of data.train " +
                             config.data.train +
                             "; expected that file and tokenizer.json of model.path on the "
                             "trainer's machine too");
  }
}

// The curriculum of a run, with the prompts of its next steps chosen; nullptr without one.
std::shared_ptr<Curriculum> make_curriculum(const Config& config,
                                            const std::vector<OrderPart>& parts,
                                            const std::string& state, int64_t first_step) {
  if (!has_curriculum(config.data)) {
    return nullptr;
  }
  if (parts.empty()) {
    throw std::runtime_error("data.curriculum is " + config.data.curriculum.mode +
                             ", but the trainer cannot read the prompts of data.train " +
                             config.data.train +
                             "; expected that file and tokenizer.json of "
                             "model.path on the trainer's machine too");
  }
  auto curriculum = std::make_shared<Curriculum>(config, parts, state);
  curriculum->choose(first_step + config.algorithm.max_staleness);
  return curriculum;
}

// Durations of one kind of work over a run.
class Durations {
 public:
  void add(Clock::duration span) {
    const double ms = std::chrono::duration<double, std::milli>(span).count();
    total_ms_ += ms;
    longest_ms_ = std::max(longest_ms_, ms);
    ++count_;
  }
  // E.g. "copying took 1.25 ms on average and 3.50 ms at most for each of 100 versions".
  std::string sentence(const std::string& what) const {
    char figures[96];
    std::snprintf(figures, sizeof figures,
                  " %.2f ms on average and %.2f ms at most for each of %lld versions",
                  total_ms_ / static_cast<double>(std::max<int64_t>(count_, 1)), longest_ms_,
                  static_cast<long long>(count_));
    return what + figures;
  }

 private:
  double total_ms_ = 0;
  double longest_ms_ = 0;
  int64_t count_ = 0;
};

// "37 of 100 completions are missing; 1 of 2 connected workers has the held-out prompts".
std::string describe(const bridge::EvaluationProgress& progress) {
  return std::to_string(progress.missing) + " of " + std::to_string(progress.samples) +
         " completions are missing; " + std::to_string(progress.evaluating) + " of " +
         std::to_string(progress.workers) + " connected workers have the held-out prompts";
}

// Logs once that workers are connected and none of them can evaluate.
class EvaluatorNotice {
 public:
  void tick(const bridge::EvaluationProgress& progress) {
    if (progress.evaluating > 0 || progress.workers == 0) {
      since_ = Clock::now();
    }
    if (logged_ || Clock::now() < since_ + kNobody) {
      return;
    }
    logged_ = true;
    log::warn("evaluation waits: " + describe(progress) +
              "; expected a worker that was started with this recipe");
  }

 private:
  Clock::time_point since_ = Clock::now();
  bool logged_ = false;
};

// Logs the events of a bridge as they happen. Thread: one of its own. Blocks on: the clock.
// Unblocked by: destruction, after the last events.
class EventReporter {
 public:
  explicit EventReporter(RolloutIntake& intake)
      : intake_(intake),
        events_(log::info),
        thread_([this](const std::stop_token& stop) { loop(stop); }) {}

 private:
  void loop(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    try {
      do {
        print();
        std::unique_lock lock(mutex);
        stopped.wait_for(lock, stop, kBetweenEvents, [] { return false; });
      } while (!stop.stop_requested());
      print();
    } catch (const std::exception&) {
      // The endpoint has failed: the next poll() of the training loop throws the same error.
    }
  }
  void print() {
    for (const IntakeMessage& message : intake_.drain_messages()) {
      message.is_trouble ? log::warn(message.text) : events_.add(message.text);
    }
    events_.tick();
  }

  RolloutIntake& intake_;
  EventLog events_;
  std::jthread thread_;  // last: it uses all of the above
};

// Thread: the work after the copy runs on one thread of its own (writing directories, hashing,
// comparing, compressing). Blocks on: the disk, and mutex_ for a publish. Unblocked by: publish(),
// which hands over a version, or destruction.
class LiveSource final : public RolloutSource {
  template <class Action>
  auto with_intake(Action action) {
    const std::lock_guard lock(mutex_);
    return action();
  }

 public:
  LiveSource(const Config& config, const bridge::TrainerOptions& options, const StepRules& rules,
             const std::filesystem::path& directory, int64_t last_step, KnownPrompts known,
             std::shared_ptr<Curriculum> curriculum)
      : answers_(std::move(known.answers)),
        curriculum_(std::move(curriculum)),
        rewards_(parse_rewards(config.rollout.reward)),
        group_size_(config.rollout.group_size),
        max_staleness_(config.algorithm.max_staleness),
        eval_(config.eval),
        dtype_(scalar_type(published_dtype(config))),
        shares_memory_(config.weights.shared_memory),
        run_id_(options.run_id),
        trainer_term_(options.trainer_term),
        last_step_(last_step),
        endpoint_file_(directory / "endpoint.json"),
        directories_(version_directories(config)),
        chain_({config.weights.encoding == WeightEncoding::kAuto, config.weights.full_every}),
        intake_(options, rules, last_step) {
    write_addresses(/*ended=*/false);
  }

  // After the last step nothing is sampled, unless the workers evaluate its weights.
  engine::WeightSink weight_sink(int64_t version, int64_t next_step) override {
    if (next_step > last_step_ && !(has_evaluation() && evaluation_is_due(eval_, next_step - 1))) {
      return {};
    }
    return [this, version, next_step](engine::UnitExport& units) {
      publish(units, version, next_step);
    };
  }

  std::string reference_answer(int64_t group_id) override {
    return answers_ && group_id >= 0 ? answers_->of(group_id) : "";
  }

  int64_t kind_of_group(int64_t group_id) override {
    return answers_ && group_id >= 0 ? answers_->kind(group_id) : 0;
  }

  void observe(int64_t step, std::span<const bridge::Rollout> rollouts) override {
    if (!curriculum_) {
      return;
    }
    const auto size = static_cast<std::size_t>(group_size_);
    for (std::size_t first = 0; first + size <= rollouts.size(); first += size) {
      double sum = 0.0, scored = 0.0;
      for (const bridge::Rollout& rollout : rollouts.subspan(first, size)) {
        if (is_scored(rollout)) {
          sum += total_reward(rollout, rewards_);
          scored += 1.0;
        }
      }
      if (scored > 0) {
        curriculum_->measure(rollouts[first].group_id / kRoundStride, sum / scored);
      }
    }
    curriculum_->choose(step + 1 + max_staleness_);
  }

  std::string curriculum_state(int64_t step) const override {
    return curriculum_ ? curriculum_->state(step) : "";
  }

  bool has_evaluation() const override { return eval_.by == EvalBy::kWorkers; }

  HeldOutAnswers evaluate(const HeldOutWork& work) override {
    auto until = Clock::now() + work.patience;
    const auto waits = [&] { return work.stop_signal() == 0 && Clock::now() < until; };
    while (!jobs_.wait_idle(kWhileEncoding)) {  // the version to evaluate is still being encoded
      if (!waits()) {
        return {{}, "the weights were not published in time"};
      }
    }
    with_intake([&] {
      intake_.endpoint().open_evaluation(work.prompts, static_cast<int32_t>(work.samples));
    });
    EvaluatorNotice notice;
    int64_t missing = -1;
    do {
      HeldOutAnswers answers;
      const auto progress = with_intake([&] {
        if (auto samples = intake_.endpoint().take_evaluation(kEvaluationSlice)) {
          answers.samples = std::move(*samples);
        }
        return intake_.endpoint().evaluation();
      });
      if (!answers.samples.empty()) {
        return answers;
      }
      if (std::exchange(missing, progress.missing) != progress.missing) {
        until = Clock::now() + work.patience;
      }
      notice.tick(progress);
    } while (waits());
    return with_intake([&] {
      const bridge::EvaluationProgress progress = intake_.endpoint().evaluation();
      intake_.endpoint().end_evaluation();
      return HeldOutAnswers{{}, describe(progress)};
    });
  }

  // Does not wait for a version that is being encoded: rollouts already received are returned.
  std::optional<std::vector<bridge::FlatRollout>> poll(int64_t step,
                                                       milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    for (;;) {
      const auto left = std::max(milliseconds::zero(),
                                 std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
      const bool encoded = jobs_.wait_idle(milliseconds::zero());
      {
        const std::lock_guard lock(mutex_);
        if (auto rollouts = intake_.poll(step, encoded ? left : milliseconds::zero())) {
          return rollouts;
        }
      }
      if (encoded || left == milliseconds::zero()) {
        return std::nullopt;
      }
      jobs_.wait_idle(std::min(left, kWhileEncoding));
    }
  }

  SourceCounters counters() const override {
    const std::lock_guard lock(mutex_);
    SourceCounters counters = intake_.counters();
    if (curriculum_) {
      counters.pools = curriculum_->sizes();
    }
    return counters;
  }
  void checkpointed(int64_t step) override {
    const std::lock_guard lock(mutex_);
    intake_.endpoint().checkpointed(step);
    if (curriculum_) {
      curriculum_->forget(step);
    }
  }
  void finish() override {
    jobs_.wait_idle(kFinish);
    const std::lock_guard lock(mutex_);
    intake_.finish();
    write_addresses(/*ended=*/true);  // for a worker that did not receive END
    log::debug(stalls_.sentence("publishing delayed the training by"));
    log::debug(encoding_.sentence("hashing and comparing in the background took"));
  }

 private:
  void publish(engine::UnitExport& units, int64_t version, int64_t next_step) {
    const auto begin = Clock::now();
    auto block = shared_block(units.weights().bytes(dtype_));
    if (!copy_stream_) {
      copy_stream_ = engine::make_side_stream(units.weights().context().device);
    }
    WeightCopy copy(units, dtype_, block, copy_stream_);
    jobs_.submit([this, config = units.weights().config(), copy = std::move(copy),
                  block = std::move(block), version, next_step]() mutable {
      auto tensors = copy.take();
      if (directories_) {  // written before the version is announced
        directories_->write(config, tensors_of(tensors), trainer_term_, version);
      }
      offer(std::move(tensors), std::move(block), version, next_step);
    });
    stalls_.add(Clock::now() - begin);
  }

  void write_addresses(bool ended) {
    const bridge::TrainerEndpoint& endpoint = intake_.endpoint();
    write_endpoint_file(endpoint_file_, {endpoint.rollout_address(), endpoint.weights_address(),
                                         run_id_, trainer_term_, ended});
  }

  // nullptr if no shared memory is wanted or the kernel provides none: all workers then use the
  // network.
  std::shared_ptr<bridge::SharedBlock> shared_block(std::size_t bytes) {
    if (!shares_memory_) {
      return nullptr;
    }
    try {
      return blocks_.take(bytes);
    } catch (const std::system_error& error) {
      if (!std::exchange(not_shared_logged_, true)) {
        log::info(std::string("no shared memory, weights are sent over the network only: ") +
                  error.what());
      }
      return nullptr;
    }
  }

  // Runs on the job thread: hashing, comparing and compressing must not delay the training or the
  // endpoint. Every version is published, in order, and its groups are granted after it. So the
  // weights that a group is sampled under do not depend on the speed of this thread.
  void offer(std::vector<bridge::NamedBuffer> tensors,
             std::shared_ptr<const bridge::SharedBlock> block, int64_t version, int64_t next_step) {
    const auto begin = Clock::now();
    auto snapshot = chain_.extend(bridge::make_snapshot(run_id_, trainer_term_, version,
                                                        std::move(tensors), std::move(block)));
    const auto took = Clock::now() - begin;
    const std::lock_guard lock(mutex_);
    encoding_.add(took);
    intake_.publish(std::move(snapshot), next_step);
  }

  std::unique_ptr<GrantedAnswers> answers_;  // null: not known here
  std::shared_ptr<Curriculum> curriculum_;   // shared with the step policy; null: none
  std::vector<WeightedReward> rewards_;
  int64_t group_size_;
  int64_t max_staleness_;
  EvalConfig eval_;
  at::ScalarType dtype_;
  bool shares_memory_;
  std::string run_id_;
  int64_t trainer_term_;
  int64_t last_step_;
  std::filesystem::path endpoint_file_;
  std::optional<VersionDirectories> directories_;
  bridge::DeltaChain chain_;  // used by the job thread; holds the newest published version: one
                              // copy in host memory
  bridge::SharedBlocks blocks_;
  bool not_shared_logged_ = false;
  std::optional<c10::Stream> copy_stream_;  // of the model's device, once it has one
  Durations stalls_;
  mutable std::mutex mutex_;  // guards the two below
  RolloutIntake intake_;
  Durations encoding_;
  EventReporter reporter_{intake_};
  JobThread jobs_;  // last: its jobs use all of the above
};

}  // namespace

std::unique_ptr<RolloutSource> make_live_source(const Config& config, const std::string& run_id,
                                                const std::filesystem::path& run_dir,
                                                int64_t restored_version, int64_t last_step,
                                                const std::string& curriculum_state) {
  const auto directory = run_dir / "bridge";
  std::filesystem::create_directories(directory);
  bridge::TrainerOptions options = trainer_options(
      config.bridge, run_id, bridge::next_trainer_term(directory), directory / "journal");
  KnownPrompts known = set_admission(options, config);
  check_records_known(config, known);
  const auto curriculum =
      make_curriculum(config, known.parts, curriculum_state, restored_version + 1);
  options.newest_of_term = record_start(directory, options.trainer_term, restored_version);
  try {
    return std::make_unique<LiveSource>(config, options,
                                        step_rules(config, restored_version, curriculum), directory,
                                        last_step, std::move(known), curriculum);
  } catch (const bridge::BindError& error) {
    throw std::runtime_error(
        std::string(error.address == options.rollout_address ? "bridge.rollout_address"
                                                             : "bridge.weights_address") +
        ": " + error.what() +
        "; expected an address that is free, or none for a port that the system picks");
  }
}

}  // namespace ringside::rl
