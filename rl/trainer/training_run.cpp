#include "rl/trainer/training_run.h"

#include <fcntl.h>
#include <string.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <span>
#include <stdexcept>

#include "engine/io/adapter_directory.h"
#include "engine/io/atomic_directory.h"
#include "engine/io/hf_directory.h"
#include "engine/io/value_model_files.h"
#include "rl/config/adapter_names.h"
#include "rl/config/eval_sets.h"
#include "rl/report/log.h"
#include "rl/report/run_summary.h"
#include "rl/setup/model_setup.h"
#include "rl/trainer/source_fingerprints.h"
#include "rl/trainer/step_metrics.h"
#include "rollout_bridge/base/posix_file.h"

namespace ringside::rl {
namespace {

std::string new_run_id() {
  std::random_device entropy;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", entropy(), entropy());
  return text;
}

// The run's id: drawn at the first start and stored in RUN_DIR/run_id. A start that finds no
// checkpoint yet must still recognise the journal of the previous start as its own. Written by
// rename, so that a crash leaves no id or a complete one.
std::string kept_run_id(const std::filesystem::path& run_dir) {
  const auto path = run_dir / "run_id";
  std::string id;
  if (std::ifstream file(path); file) {
    if (!std::getline(file, id) || id.empty()) {
      throw std::runtime_error(path.string() + ": expected the id of the run and a newline");
    }
    return id;
  }
  id = new_run_id();
  std::filesystem::create_directories(run_dir);
  const auto fresh = run_dir / "run_id.new";
  {
    bridge::PosixFile file(fresh, O_WRONLY | O_CREAT | O_TRUNC);
    const std::string text = id + "\n";
    file.append(std::as_bytes(std::span(text)));
    file.sync();
  }
  std::filesystem::rename(fresh, path);
  bridge::sync_directory(run_dir);
  return id;
}

std::string describe_saves(const BackgroundSave::Figures& figures) {
  char text[160];
  std::snprintf(
      text, sizeof text,
      "%lld checkpoint%s: training waited %.3f s for copies to host memory and %.3f s for "
      "saves to end",
      static_cast<long long>(figures.saves), figures.saves == 1 ? "" : "s", figures.copying,
      figures.waiting);
  return text;
}

Facts start_facts(const RunOptions& options, const sp::Mesh& mesh) {
  Facts facts = options.facts;
  facts.emplace_back("ranks", std::to_string(mesh.shape().world_size()));
  for (auto& fact : machine_facts()) {
    facts.push_back(std::move(fact));
  }
  return facts;
}

void log_end(const TrainingRun& run, const RunCheckpoints& checkpoints) {
  for (const std::string& sentence : summarize_run(read_metrics(run.run_dir() / "metrics.jsonl"))) {
    log::info(sentence);
  }
  if (const auto& figures = checkpoints.figures(); figures.saves > 0) {
    log::info(describe_saves(figures));
  }
  if (run.config().checkpoint.keep_best) {
    if (const auto best = best_checkpoint(run.run_dir(), best_metric(run.config()))) {
      log::info("best evaluation: " + best->evaluation.metric + " " +
                std::to_string(best->evaluation.value) + ", " + best->dir.string());
    }
  }
  log::info("metrics: " + (run.run_dir() / "metrics.jsonl").string() +
            "; as a page with samples: ringside report " + run.run_dir().string());
  const std::filesystem::path& newest = checkpoints.newest();
  const std::string steps = std::to_string(run.state().step);
  if (const int signal = run.stop_signal(); signal == 0) {
    log::info("finished: " + steps + " steps, " + final_directory(run.run_dir()).string());
  } else {
    log::warn(std::string("stopped by SIG") + sigabbrev_np(signal) + " after step " + steps + "; " +
              (newest.empty() ? "nothing was trained yet"
                              : "run the same command to resume from " + newest.string()));
  }
}

}  // namespace

TrainingRun::TrainingRun(RunOptions options, const sp::Mesh& mesh, sp::ProcessGroups comms)
    : options_(std::move(options)),
      ranks_(config(), mesh, std::move(comms)),
      checkpoints_({config().checkpoint, best_metric(config()), run_dir(), config().model.path,
                    ranks_.round(), options_.before_checkpoint},
                   mesh, ranks_.comms().control(sp::axes::kWorld)) {
  // Before any rank looks for the newest checkpoint.
  ranks_.on_main([this] {
    lock_.emplace(run_dir());
    recover_checkpoints(run_dir());
  });
  set_damaged_aside(run_dir(), ranks_.world(), ranks_.round());
  ranks_.on_every([this] { load(); });
}

void TrainingRun::load() {
  const auto resumed = checkpoints_.resume();
  if (resumed) {
    state_ = *resumed;
  } else {
    state_.seed = config().seed;
    state_.run_id = ranks_.is_main() ? kept_run_id(run_dir()) : "";
  }
  load_policies(resumed.has_value());
  check_finite();
  if (ranks_.is_main()) {
    report_.emplace(config(), run_dir(), steps(), checkpoints_.newest(), state_.step);
    append_start(run_dir() / "starts.jsonl", state_.step, steps(),
                 start_facts(options_, ranks_.mesh()));
  }
  checkpoints_.start_clock();
}

void TrainingRun::load_policies(bool resumed) {
  const std::size_t adapters = adapter_names(config().lora).size();
  if (!resumed) {
    state_.adapters.assign(adapters, TrainingState());
  } else if (state_.adapters.size() != adapters) {
    throw std::runtime_error(checkpoints_.newest().string() + " has " +
                             std::to_string(state_.adapters.size()) +
                             " adapters with a name, and lora.adapters names " +
                             std::to_string(adapters) + "; expected the lora.adapters of its run");
  }
  const AlgorithmConfig& algorithm = config().algorithm;
  const auto start = [&](TrainingState& state) {
    if (!resumed || algorithm.kl_target == 0.0) {
      state.kl_coef = algorithm.kl_coef;
    }
    if (!resumed || algorithm.entropy_target == 0.0) {
      state.entropy_coef = algorithm.entropy_coef;
    }
  };
  start(state_);
  if (adapters == 0) {
    policies_.push_back({"", state_, PolicyTraining(config(), ranks_, state_)});
    checkpoints_.add_model("policy", policy().runner());
    return;
  }
  auto loaded = rl::load_policies(config(), compute_context(config(), ranks_.comms()));
  for (std::size_t i = 0; i < adapters; ++i) {
    TrainingState& state = state_.adapters[i];
    start(state);
    policies_.push_back({loaded[i].name, state,
                         PolicyTraining(config(), ranks_, state, std::move(loaded[i].stages))});
    checkpoints_.add_model("policy/" + loaded[i].name, policies_.back().training.runner());
  }
}

void TrainingRun::check_finite() {
  const std::filesystem::path& newest = checkpoints_.newest();
  for (RunPolicy& policy : policies_) {
    const std::string name = engine::first_non_finite(policy.training.runner().model().units());
    if (!name.empty()) {
      throw std::runtime_error(
          (newest.empty() ? "model.path " + config().model.path : newest.string()) +
          ": weights of " + name + " are not finite");
    }
  }
}

void TrainingRun::diverged(const engine::Diverged& error) {
  checkpoints_.wait_for_save();
  const std::filesystem::path& newest = checkpoints_.newest();
  throw TrainingFailed("step " + std::to_string(state_.step + 1) + ": " + error.what() +
                       (newest.empty() ? "; there is no checkpoint yet"
                                       : "; the newest checkpoint is " + newest.string()) +
                       ". Training has diverged: expected a lower optimizer.learning_rate or "
                       "optimizer.max_grad_norm");
}

void TrainingRun::fail(const std::string& reason) {
  if (ranks_.is_main()) {
    report_->finish();
  }
  checkpoints_.finish(state_, evaluation_);
  throw TrainingFailed("step " + std::to_string(state_.step) + ": " + reason +
                       ". The checkpoint is " + checkpoints_.newest().string());
}

std::optional<int64_t> TrainingRun::finish_step(Metrics metrics,
                                                const std::vector<UpdateResult>& updates) {
  ++state_.step;
  ++state_.weight_version;
  for (TrainingState& adapter : state_.adapters) {
    adapter.step = state_.step;
    adapter.weight_version = state_.weight_version;
  }
  evaluation_ = evaluation_of(metrics, best_metric(config()));
  if (ranks_.is_main()) {
    report_->write(state_, std::move(metrics), updates);
  }
  StepEndVote vote = checkpoints_.vote(state_.step, evaluation_);
  vote.signal = signal_here();
  vote = vote.max_over(ranks_.world());
  agree_to_stop(static_cast<int>(vote.signal));
  return checkpoints_.step_end(vote, state_, evaluation_);
}

// Writes the PEFT directory of each adapter with a name to dir/adapter/NAME. Rank 0 has the files,
// and `dir`; every rank gives its part of the weights.
void TrainingRun::write_final_adapters(const std::filesystem::path& dir) const {
  for (const RunPolicy& policy : policies_) {
    const std::filesystem::path own = dir / "adapter" / policy.name;
    engine::WeightSink sink;
    if (ranks_.is_main()) {
      sink = [&](engine::UnitExport& units) {
        std::filesystem::create_directories(own);
        engine::save_adapters(*engine::whole_adapters(units), own, config().model.path);
      };
    }
    ranks_.export_weights(engine::WeightView::adapters_of(policy.training.stages()), sink);
  }
}

// The policy or reward model as a Hugging Face directory, with its adapters and the other models in
// folders; of several adapters their folders alone. Rank 0 has the files; every rank gives its part
// of the weights.
void TrainingRun::write_final() const {
  const std::string& base = config().model.path;
  const PolicyTraining& training = policies_.front().training;
  const engine::Decoder& policy = training.decoder();
  std::optional<engine::AtomicDirectory> directory;
  ranks_.on_main([&] { directory.emplace(final_directory(run_dir())); });
  // Everything that can fail on rank 0 alone is done in a sink.
  const auto write = [&](const engine::WeightView& weights, const auto& files) {
    engine::WeightSink sink;
    if (directory) {
      sink = [&](engine::UnitExport& units) { files(directory->path(), units); };
    }
    ranks_.export_weights(weights, sink);
  };
  const bool has_names = !state_.adapters.empty();
  if (has_names) {
    write_final_adapters(directory ? directory->path() : std::filesystem::path());
  } else if (const engine::ValueModel* reward_model = training.reward_model()) {
    write(*reward_model, [&](const std::filesystem::path& dir, engine::UnitExport& units) {
      engine::save_reward_description(policy.config(), dir, policy.compute_dtype(), base);
      engine::value_model_files(dir)(units);
    });
  } else {
    write(engine::WeightView(training.stages()),
          [&](const std::filesystem::path& dir, engine::UnitExport& units) {
            engine::SaveOptions options;
            options.copy_from = base;
            engine::model_files(dir, policy.compute_dtype(), options)(units);
          });
  }
  for (const auto& [name, model] : final_models_) {
    write(*model, [&](const std::filesystem::path& dir, engine::UnitExport& units) {
      std::filesystem::create_directories(dir / name);
      engine::value_model_files(dir / name)(units);
    });
  }
  if (policy.adapters() != nullptr && !has_names) {
    write(engine::WeightView::adapters_of(training.stages()),
          [&](const std::filesystem::path& dir, engine::UnitExport& units) {
            std::filesystem::create_directories(dir / "adapter");
            engine::save_adapters(*engine::whole_adapters(units), dir / "adapter", base);
          });
  }
  ranks_.on_main([&] {
    write_final_state(directory->path(), state_);
    directory->commit();
  });
}

void TrainingRun::finish() {
  if (ranks_.is_main()) {
    report_->finish();
  }
  checkpoints_.finish(state_, evaluation_);
  if (stop_signal() == 0) {
    write_final();
  }
  if (ranks_.is_main()) {
    log_end(*this, checkpoints_);
  }
}

}  // namespace ringside::rl
