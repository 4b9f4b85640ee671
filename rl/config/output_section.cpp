#include <algorithm>

#include "rl/config/environment_choice.h"
#include "rl/config/eval_sets.h"
#include "rl/config/sections.h"
#include "rl/config/task.h"

namespace ringside::rl {
namespace {

void add_checkpoint(FieldList& fields, CheckpointConfig& checkpoint) {
  fields.integer("checkpoint.every", checkpoint.every, at_least(0),
                 "training steps between checkpoints; 0 = by time alone");
  fields.real("checkpoint.every_minutes", checkpoint.every_minutes, at_least(0),
              "minutes between checkpoints, each at the end of a step; 0 = by steps alone. SIGINT "
              "and SIGTERM save too");
  fields.integer("checkpoint.keep", checkpoint.keep, at_least(0),
                 "newest checkpoints to keep, besides checkpoint-final; 0 = all");
  fields.flag("checkpoint.keep_best", checkpoint.keep_best,
              "also save and keep the checkpoint with the best evaluation (see eval.every)");
  fields.text("checkpoint.best_metric", checkpoint.best_metric,
              "the metric that decides on the best, as eval/NAME/pass@1; of a loss the lowest is "
              "the best. \"\" = the reward or loss of the first set");
}

void add_log(FieldList& fields, LogConfig& log) {
  fields.choice("log.level", log.level, "debug, info, warn, error");
  fields.choice("log.progress", log.progress,
                "bar = a live screen of a few lines, lines = one line per step, auto = the screen "
                "on a terminal and lines elsewhere");
  fields.flag("log.rollouts", log.rollouts,
              "append each rollout that a step trains on to RUN_DIR/rollouts.jsonl");
  fields.integer("log.samples", log.samples, at_least(0),
                 "of each step, write this many completions with their tokens, advantages and "
                 "log-probs to RUN_DIR/samples.jsonl: those with the lowest and highest rewards; "
                 "0 = none");
  fields.flag("log.samples_after", log.samples_after,
              "score these completions again after the step's update: how it changed each token's "
              "probability; costs one more forward over them");
  fields.text("log.openmetrics", log.openmetrics,
              "HOST:PORT where rank 0 serves the newest metrics to Prometheus and the like, at "
              "/metrics; \"\" = do not");
}

void add_eval(FieldList& fields, EvalConfig& eval) {
  fields.path("eval.sets", eval.sets,
              "more held-out sets by name, {NAME: FILES, ...}, with FILES as those of data.eval "
              "(sft: data.sft_eval); their metrics are eval/NAME/reward and so on",
              absolute_eval_sets);
  fields.integer("eval.every", eval.every, at_least(0),
                 "training steps between evaluations on data.eval (sft: data.sft_eval) and "
                 "eval.sets; 0 = never");
  fields.flag("eval.before_training", eval.before_training,
              "also evaluate before the first step (step 0 of the metrics); needs every above 0");
  fields.integer("eval.max_prompts", eval.max_prompts, at_least(0),
                 "how many prompts (documents) of each held-out set are used, the first; 0 = all");
  fields.integer("eval.samples", eval.samples, between(1, 1024),
                 "completions per prompt; above 1 also pass@k for k = 1, 2, 4, ... up to this");
  fields.real("eval.temperature", eval.temperature, between(0, 10),
              "sampling temperature of evaluation; 0 = greedy, with samples 1 only");
  fields.choice(
      "eval.by", eval.by,
      "what samples: embedded = the generator of rank 0, while training waits; workers = the "
      "rollout workers, with the weights of the step, before they go on with training");
  fields.real("eval.timeout_s", eval.timeout_s, NumberRange{.low = 0, .high = 1e9, .above = true},
              "workers: an evaluation without a new completion for so many seconds is left out, "
              "with a warning");
}

std::string task_word(const Config& c) { return std::string(to_string(c.algorithm.task)); }

// Several completions of a prompt: greedy ones would be equal, and fine-tuning has none.
void check_evaluation(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.eval.samples > 1 && c.eval.temperature == 0.0) {
    mistakes.push_back({"eval.samples", "is " + std::to_string(c.eval.samples) +
                                            ", but eval.temperature 0 samples greedily and every "
                                            "completion of a prompt would be the same; expected "
                                            "eval.temperature above 0, or eval.samples 1"});
  }
  if (c.eval.samples > 1 && !samples_completions(c)) {
    mistakes.push_back({"eval.samples", "is " + std::to_string(c.eval.samples) +
                                            ", but algorithm.task " + task_word(c) +
                                            " samples nothing: it computes the loss on " +
                                            held_out_files(c).key + "; expected eval.samples 1"});
  }
}

// Who samples the completions of an evaluation.
void check_evaluation_by_workers(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.eval.by != EvalBy::kWorkers) {
    if (has_sessions(c.rollout) && c.algorithm.task == Task::kRl && c.eval.every > 0) {
      mistakes.push_back(
          {"eval.by", "is embedded, but with " + sessions_key(c.rollout) +
                          " only workers make samples; expected workers, or eval.every 0"});
    }
    return;
  }
  if (!samples_completions(c)) {
    mistakes.push_back({"eval.by", "is workers, but algorithm.task " + task_word(c) +
                                       " has none: it computes the loss on " +
                                       held_out_files(c).key + "; expected eval.by embedded"});
  } else if (c.rollout.reward == "worker" && !has_sessions(c.rollout)) {
    mistakes.push_back({"eval.by",
                        "is workers, but rollout.reward is worker: only Ringside's own workers "
                        "evaluate, with the rewards of the recipe, of rollout.harness or of "
                        "rollout.environment; expected rewards by name"});
  } else if (c.rollout.server == RolloutServer::kLlamaCpp && c.eval.temperature != 1.0) {
    mistakes.push_back({"eval.by",
                        "is workers, but rollout.server llama_cpp samples at temperature 1 only; "
                        "expected eval.temperature 1, or eval.by embedded"});
  }
}

// HOST:PORT, with a port from 1.
void check_openmetrics(const Config& c, std::vector<Mistake>& mistakes) {
  const std::string& address = c.log.openmetrics;
  const std::size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  const bool good = digits && colon > 0 && std::stoi(port) >= 1 && std::stoi(port) <= 65535;
  if (!address.empty() && !good) {
    mistakes.push_back({"log.openmetrics", "is \"" + address +
                                               "\", expected HOST:PORT such as 127.0.0.1:9400, "
                                               "or \"\" to serve nothing"});
  }
}

void check_checkpoints(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.checkpoint.keep_best && c.eval.every == 0) {
    mistakes.push_back({"checkpoint.keep_best",
                        "is true, but nothing is evaluated: eval.every is 0; expected eval.every "
                        "above 0, or keep_best false"});
  }
  const std::string& best = c.checkpoint.best_metric;
  const auto metrics = evaluation_metrics(c);
  if (!best.empty() && std::find(metrics.begin(), metrics.end(), best) == metrics.end()) {
    std::string names;
    for (const std::string& name : metrics) {
      names += (names.empty() ? "" : ", ") + name;
    }
    mistakes.push_back({"checkpoint.best_metric",
                        "is " + best + ", which no evaluation of this recipe gives; expected " +
                            (names.empty() ? "data.eval or eval.sets to name held-out prompts"
                                           : "one of " + names)});
  }
}

}  // namespace

void add_output_sections(FieldList& fields, CheckpointConfig& checkpoint, LogConfig& log,
                         EvalConfig& eval) {
  add_checkpoint(fields, checkpoint);
  add_log(fields, log);
  add_eval(fields, eval);
  for (const char* section : {"checkpoint.", "log.", "eval."}) {
    fields.may_change_on_resume(section);
  }
  fields.often_set("checkpoint", {"every", "keep"});
  fields.often_set("log", {"rollouts"});
  fields.often_set("eval", {"every", "by", "sets", "max_prompts"});
}

void check_output_sections(const Config& c, std::vector<Mistake>& mistakes) {
  check_checkpoints(c, mistakes);
  check_evaluation(c, mistakes);
  check_evaluation_by_workers(c, mistakes);
  check_openmetrics(c, mistakes);
}

}  // namespace ringside::rl
