#include <nlohmann/json.hpp>

#include "rl/config/data_files.h"
#include "rl/config/environment_choice.h"
#include "rl/config/harness_function.h"
#include "rl/config/sections.h"
#include "rl/config/stop_texts.h"
#include "rl/config/task.h"
#include "rl/rewards/judge_reward.h"
#include "rl/rewards/weighted_rewards.h"

namespace ringside::rl {
namespace {

// rollout.reward with the files of Python functions as absolute paths.
std::string absolute_reward_files(const std::string& text, const std::filesystem::path& folder) {
  return with_reward_files(text,
                           [&](const std::string& file) { return absolute_path(file, folder); });
}

// The rubric of a judge, if it is a file's name, as an absolute path.
std::string absolute_rubric(const std::string& text, const std::filesystem::path& folder) {
  return is_rubric_file(text) ? absolute_path(text, folder) : text;
}

void add_sampling(FieldList& fields, RolloutConfig& rollout) {
  fields.integer("rollout.prompts_per_step", rollout.prompts_per_step, between(1, 1e6),
                 "different prompts per step, over all workers and ranks together");
  fields.integer("rollout.group_size", rollout.group_size, between(1, 65536),
                 "completions per prompt; samples per step = prompts_per_step x group_size");
  fields.integer("rollout.max_prompt_tokens", rollout.max_prompt_tokens, at_least(1),
                 "data.on_overlong says what happens to longer prompts");
  fields.integer("rollout.max_completion_tokens", rollout.max_completion_tokens, at_least(1),
                 "sampling stops here, with finish reason \"length\"");
  fields.real("rollout.temperature", rollout.temperature,
              NumberRange{.low = 0, .high = 10, .above = true},
              "sampling temperature; the trainer computes log-probs at the same temperature");
  fields.real("rollout.top_p", rollout.top_p, NumberRange{.low = 0, .high = 1, .above = true},
              "nucleus sampling; 1 = off");
  fields.integer("rollout.top_k", rollout.top_k, at_least(0),
                 "sample among the k most likely tokens; 0 = off");
  fields.text("rollout.stop", rollout.stop,
              "a completion ends after this text, or after the first of several: [\"\\n\", "
              "\"###\"]; each is "
              "one token; \"\" = after the model's end-of-sequence token");
  fields.text("rollout.reward", rollout.reward,
              "the reward, or several with weights: \"math_answer, regex * 0.2\"; "
              "python(FILE.py:FUNCTION) = your own function, FILE from the recipe's folder; worker "
              "= your own workers send rewards under any names, and they are summed; none = 0, for "
              "learning "
              "from a teacher alone (algorithm.distillation)",
              absolute_reward_files);
  fields.text("rollout.reward_separator", rollout.reward_separator,
              "the reward reads what follows the last occurrence of this text; \"\" = the whole "
              "completion");
}

void add_reward_options(FieldList& fields, RewardOptionsConfig& options) {
  fields.real(
      "rollout.reward_options.tolerance", options.tolerance, at_least(0),
      "math_answer: numbers this near are equal; relative to the larger number, absolute below 1");
  fields.text(
      "rollout.reward_options.regex", options.regex,
      "regex: the whole completion must match this expression (RE2 syntax; . matches line ends)");
  fields.path(
      "rollout.reward_options.json_schema", options.json_schema,
      "json_schema: file of the schema for completions; \"\" = the answer field is the schema");
  fields.integer("rollout.reward_options.repetition_ngram", options.repetition_ngram, at_least(1),
                 "repetition: length in words of the sequences that must not repeat");
  fields.text("rollout.reward_options.code_command", options.code_command,
              "code_tests: interpreter that runs the completion's program and the answer's tests");
  fields.real("rollout.reward_options.code_timeout_s", options.code_timeout_s, above(0),
              "code_tests: seconds that a program may take");
  fields.integer("rollout.reward_options.code_memory_mb", options.code_memory_mb, at_least(1),
                 "code_tests: MiB of address space for each process of a program");
  fields.text("rollout.reward_options.http_url", options.http_url,
              "http: address of the reward model, which is called by POST");
  fields.real("rollout.reward_options.http_timeout_s", options.http_timeout_s, above(0),
              "http: seconds that one attempt may take, of three");
  fields.text("rollout.reward_options.judge_url", options.judge_url,
              "judge: base address of a server with OpenAI's API: https://host/v1");
  fields.text("rollout.reward_options.judge_model", options.judge_model,
              "judge: name of the model that judges");
  fields.text("rollout.reward_options.judge_rubric", options.judge_rubric,
              "judge: what a good completion is, as text or as a file .md or .txt, from the "
              "recipe's folder; \"\" = it is right",
              absolute_rubric);
  fields.path("rollout.reward_options.judge_api_key_file", options.judge_api_key_file,
              "judge: file with the server's key; \"\" = none");
  fields.integer("rollout.reward_options.judge_concurrency", options.judge_concurrency,
                 between(1, 4096), "judge: requests at a time, of each worker");
  fields.real("rollout.reward_options.judge_timeout_s", options.judge_timeout_s, above(0),
              "judge: seconds that one attempt may take, of three");
  fields.text("rollout.reward_options.python_command", options.python_command,
              "python: interpreter that runs your functions, and its arguments");
  fields.integer(
      "rollout.reward_options.python_processes", options.python_processes, between(1, 64),
      "python: processes that are kept for each function; a batch is divided among them");
  fields.real(
      "rollout.reward_options.python_timeout_s", options.python_timeout_s,
      NumberRange{.low = 0, .high = 86400, .above = true},
      "python: seconds that a call may take; then its process is killed, and started again");
}

void add_harness(FieldList& fields, RolloutConfig& rollout) {
  HarnessConfig& harness = rollout.harness_options;
  fields.text("rollout.harness", rollout.harness,
              "python(FILE.py:FUNCTION) = an agent of yours makes the samples through the worker's "
              "gateway, an OpenAI and Anthropic server; FILE from the recipe's folder; external = "
              "one that runs elsewhere claims them; \"\" = a sample is one completion. Its reward "
              "is what FUNCTION returns (rollout.reward worker)",
              absolute_harness_file);
  fields.text("rollout.environment", rollout.environment,
              "python(FILE.py:CLASS) = your own environment makes the samples, turn by turn; FILE "
              "from the recipe's folder; reasoning_gym(TASK), verifiers(ENVIRONMENT), "
              "textarena(GAME), openenv(ADDRESS) = one of these packages; \"\" = none. A sample's "
              "reward is the environment's (rollout.reward worker)",
              absolute_environment_file);
  fields.text("rollout.environment_options", rollout.environment_options,
              "arguments of the environment, as JSON: {\"system_prompt\": \"Be brief.\"}");
  fields.section("rollout.harness_options", "used if harness or environment is not empty");
  fields.text("rollout.harness_options.address", harness.address,
              "HOST:PORT of the gateway; port 0 = a free one, which the worker logs. It has no "
              "authentication but the names of its sessions: use loopback or a private network");
  fields.integer("rollout.harness_options.concurrency", harness.concurrency, between(1, 4096),
                 "sessions that are played at a time");
  fields.integer("rollout.harness_options.max_turns", harness.max_turns, between(1, 16384),
                 "completions of a session; later requests are refused");
  fields.real("rollout.harness_options.session_timeout_s", harness.session_timeout_s, above(0),
              "seconds after which a session that has not ended has failed");
  fields.text("rollout.harness_options.python_command", harness.python_command,
              "interpreter that runs harness or environment, and its arguments");
  fields.text("rollout.harness_options.parser", harness.parser,
              "how tool calls and reasoning are read out of what the model said, by the name of a "
              "format; auto = by the model's chat template; none = all is content");
}

void add_server(FieldList& fields, RolloutConfig& rollout, ServerConfig& server) {
  fields.choice(
      "rollout.server", rollout.server,
      "embedded = the worker generates; vllm, sglang, llama_cpp, python = a server that it drives");
  fields.section("rollout.server_options", "used if server is not embedded");
  fields.text("rollout.server_options.url", server.url,
              "of the server; its control routes have no authentication: use loopback or a private "
              "network");
  fields.path("rollout.server_options.api_key_file", server.api_key_file,
              "file with its key for generating; \"\" = none");
  fields.text("rollout.server_options.model", server.model,
              "vllm: name of the served model; \"\" = model.path");
  fields.integer("rollout.server_options.concurrency", server.concurrency, between(1, 4096),
                 "requests at a time");
  fields.choice("rollout.server_options.weights", server.weights,
                "how the server gets new weights. pull = its own process fetches them from the "
                "worker (vllm: start it with --worker-extension-cls "
                "ringside_bridge.vllm_extension.RingsideWorkerExtension); engine = through vllm's "
                "weight-transfer routes; disk = from a directory; restart = start_command is run "
                "again; auto = the first of these that the server supports");
  fields.path("rollout.server_options.weights_directory", server.weights_directory,
              "disk, restart: directory that worker and server both see; \"\" = one in this "
              "machine's /tmp");
  fields.choice("rollout.server_options.pause", server.pause,
                "what to do with running requests on a weight update: drain = let them finish, "
                "abort = cancel and retry them, keep = continue with mixed versions (the server "
                "must report a version per token)");
  fields.real("rollout.server_options.request_timeout_s", server.request_timeout_s, above(0),
              "seconds that one completion may take");
  fields.real("rollout.server_options.load_timeout_s", server.load_timeout_s, above(0),
              "seconds that loading weights may take, and draining before it");
  fields.text("rollout.server_options.start_command", server.start_command,
              "restart: command that serves {model} at {port}; the worker runs it. Example: python "
              "-m ringside_bridge.llama_server --model {model} --port {port}");
  fields.integer("rollout.server_options.probe_tokens", server.probe_tokens, between(2, 1024),
                 "length of the text whose log-probs are compared after each loading");
  fields.real("rollout.server_options.probe_tolerance", server.probe_tolerance, above(0),
              "largest mean difference of these log-probs; above it nothing is sampled");
  add_harness(fields, rollout);
  fields.integer("rollout.num_workers", rollout.num_workers, between(1, 1024),
                 "workers that `ringside run` starts; an embedded one makes its share of a step, "
                 "256 completions at a time");
  fields.integer("rollout.worker_threads", rollout.worker_threads, between(1, 1024),
                 "CPU threads of each worker");
  fields.integer(
      "rollout.cache_mb", rollout.cache_mb, at_least(0),
      "MiB of keys and values that the built-in generator keeps at a time; where a batch "
      "needs more, its completions take turns; 0 = as many as the batch needs");
  fields.flag("rollout.partial_rollout", rollout.partial_rollout,
              "embedded, with max_staleness above 0: new weights are installed as soon as they are "
              "there, and completions that are not complete go on under them; each token is "
              "recorded with its version. false = they wait until a batch is complete");
  fields.integer(
      "rollout.max_steps_without_score", rollout.max_steps_without_score, at_least(0),
      "after so many steps in a row in which no sample has a score (a reward that "
      "fails), the run saves a checkpoint and ends with exit code 1, as a shorter run in which no "
      "step had one does; 0 = never");
  fields.real("rollout.straggler_timeout_s", rollout.straggler_timeout_s,
              NumberRange{.low = 0, .high = 1e9},
              "a step is trained without completions that have not come so many seconds after a "
              "worker was first asked for them, once min_group_size of their prompt's are there; 0 "
              "= it waits for all. Above bridge.assignment_timeout_s another worker tries before");
  fields.integer("rollout.min_group_size", rollout.min_group_size, between(2, 65536),
                 "fewest completions of a prompt, without failed ones, that are trained on without "
                 "the others; with fewer all are waited for");
}

// HOST:PORT, with port 0 for a free one.
bool is_bindable(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  return colon > 0 && !port.empty() && port.size() <= 5 &&
         port.find_first_not_of("0123456789") == std::string::npos && std::stoi(port) <= 65535;
}

// What makes the sessions: a harness or an environment.
void check_player(const RolloutConfig& rollout, std::vector<Mistake>& mistakes) {
  if (!rollout.harness.empty() && rollout.harness != kExternalHarness) {
    try {
      parse_harness(rollout.harness);
    } catch (const std::invalid_argument& error) {
      mistakes.push_back({"rollout.harness", error.what()});
    }
  }
  if (rollout.environment.empty()) {
    return;
  }
  if (!rollout.harness.empty()) {
    mistakes.push_back({"rollout.environment", "is " + rollout.environment +
                                                   ", but rollout.harness makes the samples "
                                                   "already; expected one of the two"});
  }
  try {
    parse_environment(rollout.environment);
  } catch (const std::invalid_argument& error) {
    mistakes.push_back({"rollout.environment", error.what()});
  }
  if (!rollout.environment_options.empty() &&
      !nlohmann::json::parse(rollout.environment_options, nullptr, false).is_object()) {
    mistakes.push_back({"rollout.environment_options",
                        "is " + rollout.environment_options + "; expected a JSON object"});
  }
}

void check_stragglers(const Config& c, std::vector<Mistake>& mistakes) {
  const RolloutConfig& rollout = c.rollout;
  if (rollout.straggler_timeout_s == 0) {
    return;
  }
  if (c.algorithm.advantage.estimator == AdvantageEstimator::kRemax) {
    mistakes.push_back({"rollout.straggler_timeout_s",
                        "is " + text_of(rollout.straggler_timeout_s) +
                            ", but algorithm.advantage.estimator remax cannot train on a group "
                            "without its greedy completion; expected 0, or another estimator"});
  }
  if (rollout.min_group_size >= rollout.group_size) {
    mistakes.push_back(
        {"rollout.min_group_size",
         "is " + std::to_string(rollout.min_group_size) +
             ", but a group has rollout.group_size = " + std::to_string(rollout.group_size) +
             " completions, so that none could be left out; expected fewer, or "
             "rollout.straggler_timeout_s 0"});
  }
}

}  // namespace

void check_rollout_section(const Config& c, std::vector<Mistake>& mistakes) {
  const RolloutConfig& rollout = c.rollout;
  try {
    stop_texts(rollout.stop);
  } catch (const std::invalid_argument& error) {
    mistakes.push_back({"rollout.stop", error.what()});
  }
  if (!samples_completions(c)) {
    return;
  }
  check_stragglers(c, mistakes);
  if (!has_sessions(rollout)) {
    return;
  }
  check_player(rollout, mistakes);
  if (rollout.reward != "worker") {
    mistakes.push_back(
        {"rollout.reward", "is \"" + rollout.reward + "\", but with " + sessions_key(rollout) +
                               " a sample's reward is what that says; expected worker"});
  }
  if (!c.data.image_key.empty()) {
    mistakes.push_back({"data.image_key", "is set, but requests of " + sessions_key(rollout) +
                                              " cannot have images yet; expected nothing"});
  }
  if (c.algorithm.router_replay == RouterReplay::kRollout) {
    mistakes.push_back(
        {"algorithm.router_replay", "is rollout, but samples of " + sessions_key(rollout) +
                                        " bring no experts; expected none or recompute"});
  }
  if (!is_bindable(rollout.harness_options.address)) {
    mistakes.push_back({"rollout.harness_options.address",
                        "is \"" + rollout.harness_options.address +
                            "\"; expected HOST:PORT, with port 0 for a free one"});
  }
}

void add_rollout_section(FieldList& fields, RolloutConfig& rollout) {
  add_sampling(fields, rollout);
  add_reward_options(fields, rollout.reward_options);
  add_server(fields, rollout, rollout.server_options);
  for (const char* key :
       {"rollout.num_workers", "rollout.worker_threads", "rollout.cache_mb",
        "rollout.partial_rollout", "rollout.server", "rollout.server_options.",
        "rollout.harness_options.address", "rollout.harness_options.concurrency",
        "rollout.harness_options.session_timeout_s", "rollout.harness_options.python_command",
        "rollout.straggler_timeout_s", "rollout.min_group_size"}) {
    fields.may_change_on_resume(key);
  }
  fields.often_set("rollout",
                   {"prompts_per_step", "group_size", "max_prompt_tokens", "max_completion_tokens",
                    "temperature", "reward", "reward_separator", "server", "num_workers"});
  fields.often_set("rollout.server_options", {"url", "model", "concurrency", "weights"});
}

}  // namespace ringside::rl
