#include "tools/commands/examples.h"

#include <map>
#include <string>
#include <vector>

namespace ringside::tools {
namespace {

// Every example begins with "ringside COMMAND".
const std::map<std::string, std::vector<std::string>>& examples() {
  static const std::map<std::string, std::vector<std::string>> table = {
      {"check",
       {"ringside check my.yaml",
        "ringside check my.yaml parallel.ringattn_parallel_size=4 --memory 80GiB",
        "ringside check --json-schema > recipe.schema.json"}},
      {"completion",
       {"ringside completion bash > ~/.local/share/bash-completion/completions/ringside",
        "ringside completion zsh > ~/.zfunc/_ringside"}},
      {"doctor",
       {"ringside doctor", "ringside doctor my.yaml", "ringside doctor --measure --device cpu"}},
      {"eval", {"ringside eval my-model test.jsonl my.yaml --output scored.jsonl"}},
      {"export", {"ringside export runs/my/checkpoints/step-000100 my-model"}},
      {"generate",
       {"ringside generate --model my-model --input test.jsonl --output out.jsonl my.yaml"}},
      {"init",
       {"ringside init",
        "ringside init --yes --model Qwen3-0.6B --data train.jsonl --task math_answer"}},
      {"keygen", {"ringside keygen --out keys --name trainer"}},
      {"logprobs",
       {"ringside logprobs --model my-model --input ids.jsonl --output logprobs.jsonl"}},
      {"man", {"ringside man | man -l -"}},
      {"records", {"ringside records my.yaml --count 5000 --out data/train.jsonl"}},
      {"report", {"ringside report runs/my runs/other --output report.html"}},
      {"reward",
       {"ringside reward --model runs/rewards/checkpoint-final",
        "ringside reward --model runs/rewards/checkpoint-final --address 0.0.0.0:8600 my.yaml"}},
      {"rollout",
       {"ringside rollout my.yaml --run-dir runs/my",
        "ringside rollout my.yaml --server vllm "
        "bridge.rollout_address=tcp://trainer:7001 bridge.weights_address=tcp://trainer:7002"}},
      {"run",
       {"ringside run my.yaml --dry-run", "ringside run my.yaml --run-dir runs/my",
        "ringside run my.yaml parallel.ulysses_parallel_size=2 --run-dir runs/my --steps 20"}},
      {"top", {"ringside top runs/my"}},
      {"train",
       {"ringside train sft.yaml --run-dir runs/sft",
        "ringside train my.yaml --run-dir runs/replay --rollouts recorded.jsonl",
        "torchrun --nproc-per-node 8 --no-python ringside train my.yaml --run-dir runs/my"}},
  };
  return table;
}

}  // namespace

void set_examples(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    const auto found = examples().find(command->get_name());
    if (found == examples().end()) {
      continue;
    }
    std::string text = "Examples:";
    for (const std::string& line : found->second) {
      text += "\n  " + line;
    }
    command->footer(text);
  }
}

}  // namespace ringside::tools
