// The rules of dependency that ARCHITECTURE.md states, as functions over paths and lines.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::tools {

// The quoted or angled names of a file's #include lines, in order; comments after the name are
// ignored.
std::vector<std::string> includes_of(std::string_view text);

// Whether an include name belongs to torch or to what only torch's programs use: ATen, c10, torch,
// gloo.
bool is_torch_include(std::string_view include);

// Whether the folders of `file` (relative to the root) promise to compile without torch.
bool must_be_torch_free(std::string_view file);

// What is wrong with `file` including `include`, or "": against the direction tools -> rl ->
// {engine, rollout_bridge}, engine -> sp, torch where there must be none, torch/torch.h in a
// header.
std::string include_violation(std::string_view file, std::string_view include);

// What is wrong with a file's text apart from its includes, or "": a note of unfinished work.
std::string text_violation(std::string_view text);

// The first two folders of a path relative to the root: "rl/worker" of rl/worker/link.h, "rl" of
// rl/trainer/trainer.h, "" of anything outside the five layers.
std::string second_level_folder(std::string_view path);

// The pairs of second-level folders that include each other, as "a <-> b", each with one include of
// either direction.
std::map<std::string, std::string> two_way_folders(
    const std::map<std::string, std::string>& sources);

}  // namespace ringside::tools
