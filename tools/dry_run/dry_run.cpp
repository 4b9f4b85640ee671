#include "tools/dry_run/dry_run.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "engine/io/model_config_json.h"
#include "rl/config/enums.h"
#include "rl/config/load.h"
#include "rl/config/task.h"
#include "rl/config/teacher.h"
#include "rl/config/unread_keys.h"
#include "tools/dry_run/made_up_data.h"
#include "tools/dry_run/made_up_tokenizer.h"
#include "tools/dry_run/small_config.h"
#include "tools/dry_run/small_model.h"

namespace ringside::tools {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  if (!out.flush()) {
    throw std::runtime_error(file.string() + ": cannot be written");
  }
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// The file of shapes for a model of that name: NAME.json or NAME/config.json.
std::optional<fs::path> shape_of(const std::string& name, const fs::path& shapes) {
  if (!fs::is_directory(shapes)) {
    return std::nullopt;
  }
  for (const auto& entry : fs::directory_iterator(shapes)) {
    const fs::path& path = entry.path();
    const bool folder = fs::exists(path / "config.json");
    const bool named = lower((folder ? path.filename() : path.stem()).string()) == lower(name);
    if (named && (folder || path.extension() == ".json")) {
      return folder ? path / "config.json" : path;
    }
  }
  return std::nullopt;
}

struct Shape {
  engine::ModelConfig model;
  std::string origin;
};

Shape find_shape(const std::string& path, const fs::path& shapes,
                 const engine::ReadOptions& options) {
  const fs::path model = fs::path(path).lexically_normal();
  if (fs::exists(model / "config.json")) {
    return {engine::load_model_config(model, options), (model / "config.json").string()};
  }
  const fs::path last = model.has_filename() ? model.filename() : model.parent_path().filename();
  if (const auto file = shape_of(last.string(), shapes)) {
    return {engine::load_model_config(*file, options), file->string()};
  }
  if (options.vision) {
    throw std::runtime_error("data.image_key is set, and " +
                             (path.empty() ? "model.path is not set" : path + " is not there") +
                             "; expected a model that takes images");
  }
  return {made_up_model(), "a made-up Qwen3, because " +
                               (path.empty() ? "model.path is not set" : path + " is not there")};
}

bool is_weights_or_config(const fs::path& file) {
  const std::string name = file.filename().string();
  const std::string extension = file.extension().string();
  return name == "config.json" || name == "generation_config.json" || extension == ".safetensors" ||
         extension == ".bin" || extension == ".pt" || extension == ".pth" ||
         name.ends_with(".index.json");
}

// Links the tokenizer's files. Returns false if there is no tokenizer.
bool link_tokenizer(const std::string& model, const fs::path& dir) {
  const fs::path path(model);
  if (!fs::exists(path / "tokenizer.json") && !fs::exists(path / "tokenizer.model")) {
    return false;
  }
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.is_regular_file() && !is_weights_or_config(entry.path())) {
      fs::create_symlink(fs::absolute(entry.path()), dir / entry.path().filename());
    }
  }
  return true;
}

// The text of a config.json with the ids of a made-up tokenizer for what stands for images.
std::string with_image_ids(const std::string& text, const MadeUpIds& ids) {
  auto json = nlohmann::ordered_json::parse(text);
  json["image_token_id"] = ids.image;
  json["video_token_id"] = ids.video;
  json["vision_start_token_id"] = ids.vision_start;
  json["vision_end_token_id"] = ids.vision_end;
  return json.dump(2);
}

// The text of a preprocessor_config.json that resizes images to a few tokens.
std::string small_processor(const engine::VisionConfig& vision) {
  const int64_t side = vision.patch * vision.merge;
  return nlohmann::ordered_json{
      {"image_processor_type", "Qwen2VLImageProcessorFast"},
      {"patch_size", vision.patch},
      {"temporal_patch_size", vision.temporal_patch},
      {"merge_size", vision.merge},
      {"size", {{"shortest_edge", side * side}, {"longest_edge", 4 * side * side}}}}
      .dump(2);
}

// Writes the model's directory. Returns its shape and appends what was changed.
engine::ModelConfig write_model(const DryRunRequest& request, const fs::path& dir,
                                std::vector<std::string>& lines) {
  const std::string& path = request.config.model.path;
  const bool images = !request.config.data.image_key.empty();
  const Shape shape = find_shape(path, request.shapes, {.vision = images});
  fs::create_directory(dir);
  const bool own_tokenizer = link_tokenizer(path, dir);
  if (!own_tokenizer) {
    write(dir / "tokenizer.json", made_up_tokenizer());
    write(dir / "tokenizer_config.json", made_up_tokenizer_config());
  }
  const engine::ModelConfig small = small_model(
      shape.model, own_tokenizer ? std::nullopt : std::optional<MadeUpIds>(made_up_ids()));
  const std::string text = engine::model_config_json(small, "float32");
  write(dir / "config.json", images && !own_tokenizer ? with_image_ids(text, made_up_ids()) : text);
  if (images) {
    fs::remove(dir / "preprocessor_config.json");  // a link to the model's
    fs::remove(dir / "processor_config.json");
    write(dir / "preprocessor_config.json", small_processor(*small.vision));
  }
  lines.push_back("model: " + shape.origin + "; " + describe_shrinking(shape.model, small) +
                  "; random weights");
  lines.push_back(own_tokenizer ? "tokenizer: the recipe's"
                                : "tokenizer: made up, one token a byte");
  return small;
}

// Makes the model's paths name the small model, which every model of the run starts from.
void use_small_model(rl::Config& config, const fs::path& dir) {
  config.model.path = dir.string();
  for (std::string* path : {&config.model.reference_path, &config.algorithm.critic.model_path}) {
    if (!path->empty()) {
      *path = dir.string();
    }
  }
  // In place of a server, too: a dry run asks no one.
  rl::DistillationConfig& distillation = config.algorithm.distillation;
  if (rl::has_teacher(config.algorithm)) {
    distillation.teacher = dir.string();
    distillation.teachers = "";
  }
}

// Files that a dry run does not need, or whose place is in its own folder.
void use_small_files(rl::Config& config, const fs::path& dir) {
  if (!config.weights.directory.empty()) {
    config.weights.directory = (dir / "weights").string();
  }
  std::string& schema = config.rollout.reward_options.json_schema;
  if (!schema.empty() && !fs::exists(schema)) {
    schema = "";  // the made-up answers are schemas then
  }
  std::string& speeds = config.sp.device_speeds;
  if (speeds.find('/') != std::string::npos && !fs::exists(speeds)) {
    speeds = "";
  }
}

std::string describe_ranks(const rl::ParallelConfig& from, const rl::ParallelConfig& to,
                           int64_t max_ranks) {
  const std::string ranks = std::to_string(to.world_size());
  if (from.world_size() == to.world_size()) {
    return "ranks: " + ranks + ", as in the recipe";
  }
  return "ranks: " + std::to_string(from.world_size()) + " -> " + ranks +
         ", the same axes with fewer ranks each (this machine runs " + std::to_string(max_ranks) +
         " at once)";
}

}  // namespace

PreparedDryRun prepare_dry_run(const DryRunRequest& request) {
  PreparedDryRun prepared;
  prepared.run_dir = request.dir / "run";
  prepared.recipe = request.dir / "recipe.yaml";
  rl::Config& config = prepared.config;
  config = small_config(request.config, request.max_ranks);
  const engine::ModelConfig model = write_model(request, request.dir / "model", prepared.lines);
  prepared.lines.push_back(
      describe_ranks(request.config.parallel, config.parallel, request.max_ranks));
  use_small_model(config, request.dir / "model");
  use_small_files(config, request.dir);
  use_small_data(config, request.dir);
  if (rl::samples_completions(config)) {
    for (std::string& line : left_out_rewards(config)) {
      prepared.lines.push_back(std::move(line));
    }
    config.rollout.reward = small_rewards(config);
    rl::reset_unread_keys(config);  // options of rewards that are left out
  }
  if (request.recorded_rollouts && !config.data.image_key.empty()) {
    throw std::runtime_error(
        "data.image_key is set, and a dry run makes up recorded rollouts of text alone; expected "
        "`ringside run --dry-run`, whose workers sample them");
  }
  if (request.recorded_rollouts) {
    prepared.rollouts = request.dir / "rollouts.jsonl";
    write_made_up_rollouts(config, model.vocab_size, kDryRunSteps, prepared.rollouts);
    prepared.lines.push_back("rollouts: made up");
  }
  for (const std::string& line : describe_changes(request.config, config)) {
    prepared.lines.push_back(line);
  }
  write(prepared.recipe, rl::dump(config));
  return prepared;
}

}  // namespace ringside::tools
