// Commands of the `ringside` executable: one file each in this folder, and their table.
#pragma once

#include <array>

#include "tools/commands/command.h"

namespace ringside::tools {

// Each function adds one command, whose callback sets context.exit_code. The context must outlive
// the parsing.

// What a recipe changes and would need, and every mistake; starts nothing.
void add_check_command(CommandContext& context);
// What this program, this machine and a recipe's servers have.
void add_doctor_command(CommandContext& context);
// Evaluation of a model by hand.
void add_eval_command(CommandContext& context);
// A checkpoint as a Hugging Face directory.
void add_export_command(CommandContext& context);
// Completions of prompts, with their rewards.
void add_generate_command(CommandContext& context);
// A recipe from five questions.
void add_init_command(CommandContext& context);
// A CURVE key pair for the bridge.
void add_keygen_command(CommandContext& context);
// Log-probs of given token ids at any layout.
void add_logprobs_command(CommandContext& context);
// Records of data.train, by an environment.
void add_records_command(CommandContext& context);
// The manual page and completion for shells.
void add_reference_commands(CommandContext& context);
// One HTML page about runs.
void add_report_command(CommandContext& context);
// A reward model over HTTP.
void add_reward_command(CommandContext& context);
// One rollout worker.
void add_rollout_command(CommandContext& context);
// Trainer ranks and rollout workers on this machine.
void add_run_command(CommandContext& context);
// The live screen of a run in another shell.
void add_top_command(CommandContext& context);
// Training by this process's rank, or by processes that it starts.
void add_train_command(CommandContext& context);

// In the order of `ringside --help`.
inline constexpr std::array kCommands{
    add_check_command,    add_doctor_command,     add_eval_command,   add_export_command,
    add_generate_command, add_init_command,       add_keygen_command, add_logprobs_command,
    add_records_command,  add_reference_commands, add_report_command, add_reward_command,
    add_rollout_command,  add_run_command,        add_top_command,    add_train_command,
};

}  // namespace ringside::tools
