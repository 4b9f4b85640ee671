#include "tests/tools/include_rules.h"

#include <algorithm>
#include <array>
#include <regex>

namespace ringside::tools {
namespace {

struct Layer {
  std::string_view folder;
  std::vector<std::string_view> may_include;
};

const std::vector<Layer>& layers() {
  static const std::vector<Layer> table = {
      {"sp", {"sp"}},
      {"engine", {"engine", "sp"}},
      {"rollout_bridge", {"rollout_bridge"}},
      {"rl", {"rl", "engine", "rollout_bridge", "sp"}},
      {"tools", {"tools", "rl", "engine", "rollout_bridge", "sp"}},
  };
  return table;
}

constexpr std::array<std::string_view, 12> kTorchFree = {
    "sp/lanes/",       "sp/layout/",  "sp/plan/",   "engine/images/",
    "rollout_bridge/", "rl/chat/",    "rl/config/", "rl/gateway/",
    "rl/report/",      "rl/rewards/", "rl/python/", "tools/launch/"};

// A rollout worker carries no trainer code, and the other way round.
struct Apart {
  std::string_view folder;
  std::string_view not_this;
};
constexpr std::array<Apart, 6> kApart = {{{"rl/worker/", "rl/trainer/"},
                                          {"rl/worker/", "rl/rollouts/"},
                                          {"rl/worker/", "rollout_bridge/trainer/"},
                                          {"rollout_bridge/worker/", "rollout_bridge/trainer/"},
                                          {"rollout_bridge/trainer/", "rollout_bridge/worker/"},
                                          {"rl/trainer/", "rl/worker/"}}};

std::string_view top_folder(std::string_view path) {
  const auto slash = path.find('/');
  return slash == std::string_view::npos ? "" : path.substr(0, slash);
}

const Layer* layer_of(std::string_view path) {
  const auto found = std::find_if(layers().begin(), layers().end(), [&](const Layer& layer) {
    return layer.folder == top_folder(path);
  });
  return found == layers().end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> includes_of(std::string_view text) {
  static const std::regex line(R"re((?:^|\n)[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"])re");
  const std::string copy(text);
  std::vector<std::string> names;
  for (std::sregex_iterator it(copy.begin(), copy.end(), line), end; it != end; ++it) {
    names.push_back((*it)[1]);
  }
  return names;
}

bool is_torch_include(std::string_view include) {
  constexpr std::array<std::string_view, 5> kPrefixes = {"torch/", "ATen/", "c10/", "caffe2/",
                                                         "gloo/"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return include.starts_with(prefix); });
}

bool must_be_torch_free(std::string_view file) {
  return std::any_of(kTorchFree.begin(), kTorchFree.end(),
                     [&](std::string_view folder) { return file.starts_with(folder); });
}

std::string include_violation(std::string_view file, std::string_view include) {
  const Layer* from = layer_of(file);
  const Layer* to = layer_of(include);
  if (from != nullptr && to != nullptr &&
      std::find(from->may_include.begin(), from->may_include.end(), to->folder) ==
          from->may_include.end()) {
    return std::string(from->folder) + "/ must not know " + std::string(to->folder) + "/";
  }
  for (const Apart& pair : kApart) {
    if (file.starts_with(pair.folder) && include.starts_with(pair.not_this)) {
      return std::string(pair.folder) + " must not know " + std::string(pair.not_this);
    }
  }
  if (from != nullptr && top_folder(include) == "tests") {
    return "product code includes a test's";
  }
  if (must_be_torch_free(file) && is_torch_include(include)) {
    return "this folder is torch-free";
  }
  if (include == "torch/torch.h" && file.ends_with(".h")) {
    return "torch/torch.h costs every includer 16 s; ATen/core/Tensor.h is enough in a header";
  }
  return "";
}

std::string text_violation(std::string_view text) {
  static const std::regex unfinished(R"(\b(TODO|FIXME)\b)");
  const std::string copy(text);
  std::smatch match;
  if (std::regex_search(copy, match, unfinished)) {
    return "holds a " + match.str();
  }
  return "";
}

std::string second_level_folder(std::string_view path) {
  if (layer_of(path) == nullptr) {
    return "";
  }
  const auto second = path.find('/', path.find('/') + 1);
  return std::string(second == std::string_view::npos ? top_folder(path) : path.substr(0, second));
}

std::map<std::string, std::string> two_way_folders(
    const std::map<std::string, std::string>& sources) {
  std::map<std::pair<std::string, std::string>, std::string> edges;  // to one include each
  for (const auto& [file, text] : sources) {
    const std::string from = second_level_folder(file);
    for (const std::string& include : includes_of(text)) {
      const std::string to = second_level_folder(include);
      if (!to.empty() && to != from) {
        edges.try_emplace({from, to}, file + " includes " + include);
      }
    }
  }
  std::map<std::string, std::string> found;
  for (const auto& [edge, example] : edges) {
    const auto back = edges.find({edge.second, edge.first});
    if (edge.first < edge.second && back != edges.end()) {
      found[edge.first + " <-> " + edge.second] = example + "; " + back->second;
    }
  }
  return found;
}

}  // namespace ringside::tools
