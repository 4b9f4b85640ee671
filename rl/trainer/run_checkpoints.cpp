#include "rl/trainer/run_checkpoints.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <random>
#include <utility>

#include "rl/checkpoint/checkpoint_reader.h"
#include "rl/checkpoint/export.h"
#include "rl/report/log.h"
#include "rl/trainer/rank_agreement.h"
#include "sp/mesh/rank_work.h"

namespace ringside::rl {
namespace {

std::vector<std::pair<std::string, int64_t>> layout_of(const sp::MeshShape& shape) {
  return {{"data_parallel_replicate_size", shape.dp_replicate},
          {"data_parallel_shard_size", shape.dp_shard},
          {"ringattn_parallel_size", shape.ring},
          {"ulysses_parallel_size", shape.ulysses},
          {"pipeline_parallel_size", shape.pipeline}};
}

int64_t new_tag() {
  std::random_device entropy;
  return (int64_t{entropy() >> 1} << 32) | int64_t{entropy()};
}

}  // namespace

void set_damaged_aside(const std::filesystem::path& run_dir, sp::Communicator& world,
                       std::chrono::milliseconds round) {
  for (;;) {
    std::string damage;
    sp::run_rank_work(world, round, [&] {
      const auto newest = latest_checkpoint(run_dir);
      damage = newest ? damage_of(*newest, world.rank(), world.size()) : "";
    });
    if (world.size() > 1) {
      for (const std::string& text : gather_texts(damage, world)) {
        damage = text.empty() ? damage : text;
      }
    }
    if (damage.empty()) {
      return;
    }
    const auto rename = [&] {
      const SetAside moved = set_aside(*latest_checkpoint(run_dir), damage);
      log::warn("the newest checkpoint is damaged: " + damage + "; it is now " +
                moved.moved_to.string() + ", and the run resumes from " + moved.next.string());
    };
    sp::run_rank_work(world, round, world.rank() == 0 ? rename : std::function<void()>());
  }
}

StepEndVote StepEndVote::max_over(sp::Communicator& world) const {
  at::Tensor votes = at::tensor({save, status.working, status.failed, tag, signal}, at::kLong);
  world.all_reduce_max(votes, "step end");
  const int64_t* most = votes.const_data_ptr<int64_t>();
  return {most[0], {most[1], most[2]}, most[3], most[4]};
}

RunCheckpoints::RunCheckpoints(Options options, const sp::Mesh& mesh,
                               std::shared_ptr<sp::Communicator> world)
    : options_(std::move(options)),
      mesh_(mesh),
      save_(std::move(world), options_.round, options_.before_writing) {}

std::optional<TrainingState> RunCheckpoints::resume() {
  if (mesh_.rank() == 0) {
    if (const auto best = best_checkpoint(options_.run_dir, options_.best_metric)) {
      best_score_ = best->evaluation.score();
    }
  }
  resumed_ = latest_checkpoint(options_.run_dir);
  if (!resumed_) {
    return std::nullopt;
  }
  const CheckpointReader reader(*resumed_);
  newest_ = *resumed_;
  newest_step_ = reader.manifest().state.step;
  return reader.manifest().state;
}

void RunCheckpoints::add_model(const std::string& name, engine::ModelRunner& model) {
  models_.push_back({name, &model});
  if (!resumed_) {
    return;
  }
  const CheckpointReader reader(*resumed_);
  reader.fill(name, model.state_slices());
  model.state_restored();
  const auto& steps = reader.manifest().optimizer_steps;
  if (const auto found = steps.find(name); found != steps.end()) {
    model.set_step_count(found->second);
  }
}

bool RunCheckpoints::is_due(int64_t step, const std::optional<EvaluationResult>& evaluation) {
  const CheckpointConfig& config = options_.config;
  if (config.every > 0 && step % config.every == 0) {
    return true;
  }
  if (mesh_.rank() != 0) {
    return false;
  }
  if (config.keep_best && evaluation && evaluation->score() > best_score_) {
    return true;
  }
  const std::chrono::duration<double, std::ratio<60>> since =
      std::chrono::steady_clock::now() - newest_at_;
  return config.every_minutes > 0 && since.count() >= config.every_minutes && save_.is_idle();
}

StepEndVote RunCheckpoints::vote(int64_t step, const std::optional<EvaluationResult>& evaluation) {
  StepEndVote vote;
  vote.status = save_.status();
  vote.save = is_due(step, evaluation) ? 1 : 0;
  vote.tag = mesh_.rank() == 0 ? new_tag() : 0;
  return vote;
}

std::optional<int64_t> RunCheckpoints::step_end(const StepEndVote& of_all,
                                                const TrainingState& state,
                                                const std::optional<EvaluationResult>& evaluation) {
  bool completed = save_.advance(of_all.status);
  if (of_all.save != 0) {
    completed = save_.finish() || completed;
  }
  if (completed) {
    set_newest();
  }
  if (of_all.save != 0) {
    start(state, evaluation, of_all.tag);
  }
  return completed ? std::make_optional(newest_step_) : std::nullopt;
}

void RunCheckpoints::start(const TrainingState& state,
                           const std::optional<EvaluationResult>& evaluation, int64_t tag) {
  BackgroundSave::Request request;
  saving_step_ = state.step;
  saving_ = request.dir = checkpoint_path(options_.run_dir, state.step);
  request.manifest.state = state;
  request.manifest.layout = layout_of(mesh_.shape());
  request.manifest.evaluation = evaluation;
  if (evaluation) {
    best_score_ = std::max(best_score_, evaluation->score());
  }
  for (const Model& model : models_) {
    if (model.runner->is_trained()) {
      request.manifest.optimizer_steps[model.name] = model.runner->step_count();
    }
    for (engine::NamedSlice& slice : model.runner->state_to_write()) {
      slice.name = model.name + "/" + slice.name;
      request.slices.push_back(std::move(slice));
    }
  }
  request.add_files = [model = &std::as_const(*models_.front().runner).model(),
                       from = options_.tokenizer_from](const std::filesystem::path& dir) {
    write_model_description(dir, *model, from);
  };
  request.after_commit = [options = options_] {
    prune_checkpoints(options.run_dir, options.config.keep,
                      options.config.keep_best ? options.best_metric : "");
  };
  save_.start(std::move(request), tag);
  start_clock();
}

void RunCheckpoints::set_newest() {
  newest_ = saving_;
  newest_step_ = saving_step_;
}

void RunCheckpoints::wait_for_save() {
  if (save_.finish()) {
    set_newest();
  }
}

void RunCheckpoints::finish(const TrainingState& state,
                            const std::optional<EvaluationResult>& evaluation) {
  wait_for_save();
  if (state.step <= newest_step_) {
    return;
  }
  start(state, evaluation, /*tag=*/state.step);
  wait_for_save();
}

}  // namespace ringside::rl
