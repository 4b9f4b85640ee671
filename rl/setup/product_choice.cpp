#include "rl/setup/product_choice.h"

#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "rollout_bridge/base/content_hash.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAuto = "auto";
constexpr int kFormat = 1;
constexpr const char* kRunFile = "products.txt";

std::string text_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The file's name says the machine, so that a home on several machines has one for each.
fs::path cache_file(const fs::path& directory) {
  bridge::Hash128 hash;
  const std::string machine = measured_machine();
  hash.update(std::as_bytes(std::span(machine)));
  return directory / ("products-" + hash.hex().substr(0, 16) + ".json");
}

std::optional<engine::ProductPlan> kept_plan(const fs::path& file) {
  const auto json = nlohmann::json::parse(text_in(file), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", nlohmann::json()) != kFormat ||
      json.value("machine", nlohmann::json()) != measured_machine() || !json.contains("plan") ||
      !json["plan"].is_string()) {
    return std::nullopt;
  }
  return engine::parse_product_plan(json["plan"].get<std::string>());
}

nlohmann::ordered_json json_of(const engine::ProductMeasurement& measured) {
  nlohmann::ordered_json json{{"format", kFormat},
                              {"machine", measured_machine()},
                              {"plan", engine::text_of(measured.plan)}};
  for (const engine::ProductRate& rate : measured.rates) {
    json["gflops"][rate.what] = {
        {"libtorch", rate.libtorch}, {"panels", rate.panels}, {"wide", rate.wide}};
  }
  json["attention_seconds"] = {{"fp32", measured.attention_in_fp32},
                               {"bf16", measured.attention_in_bf16}};
  return json;
}

// Puts the file there whole. replaces: whether it takes the place of one that is there; else the
// one that came first stays. Failing is no error.
void keep(const fs::path& file, const std::string& text, bool replaces) {
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  const fs::path fresh = file.string() + "." + std::to_string(getpid());
  if (std::ofstream out(fresh, std::ios::binary); !(out << text << std::flush)) {
    fs::remove(fresh, failed);
    return;
  }
  if (replaces) {
    fs::rename(fresh, file, failed);
  } else {
    fs::create_hard_link(fresh, file, failed);
  }
  fs::remove(fresh, failed);
}

std::string value_of_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

engine::ProductPlan packed_plan() {
  engine::ProductPlan plan;
  plan.fp32 = plan.bf16 = engine::ProductKernel::kPanels;
  plan.bf16_attention = true;
  return plan;
}

// Of a text other than auto.
engine::ProductPlan plan_of_text(const std::string& text) {
  if (text == "libtorch") {
    return {};
  }
  if (text == "packed") {
    return packed_plan();
  }
  const auto plan = engine::parse_product_plan(text);
  if (!plan) {
    throw std::invalid_argument("model.products: is '" + text +
                                "'; expected auto, libtorch, packed or what `ringside doctor` "
                                "prints, e.g. " +
                                engine::text_of(engine::ProductPlan()));
  }
  return *plan;
}

}  // namespace

std::string measured_machine() {
  constexpr std::array<std::string_view, 5> kLines = {"vendor_id", "cpu family", "model",
                                                      "stepping", "flags"};
  constexpr std::array<std::string_view, 8> kFlags = {
      "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_bf16", "amx_tile", "fma"};
  std::ifstream file("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) {
      continue;
    }
    const std::string name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    if (name == "flags") {
      for (const std::string_view flag : kFlags) {
        if ((line + " ").find(" " + std::string(flag) + " ") != std::string::npos) {
          text += " " + std::string(flag);
        }
      }
    } else if (std::find(kLines.begin(), kLines.end(), name) != kLines.end()) {
      text += (text.empty() ? "" : " ") + name + line.substr(colon);
    }
  }
  for (const char* variable : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS",
                               "ATEN_CPU_CAPABILITY"}) {
    if (const std::string value = value_of_variable(variable); !value.empty()) {
      text += std::string(" ") + variable + "=" + value;
    }
  }
  return text + " LibTorch " + TORCH_VERSION;
}

fs::path product_cache_directory() {
  if (const std::string cache = value_of_variable("XDG_CACHE_HOME"); !cache.empty()) {
    return fs::path(cache) / "ringside";
  }
  const std::string home = value_of_variable("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "ringside";
}

ProductChoice measured_products(const fs::path& directory,
                                const std::function<engine::ProductMeasurement()>& measure) {
  if (directory.empty()) {
    return {measure().plan, "measured; no directory to keep it in"};
  }
  const fs::path file = cache_file(directory);
  const bool damaged = fs::exists(file);
  if (const auto plan = kept_plan(file)) {
    return {*plan, "as measured before, " + file.string()};
  }
  const engine::ProductMeasurement measured = measure();
  keep(file, json_of(measured).dump(2) + "\n", damaged);
  // Another process may have been faster.
  const auto kept = kept_plan(file);
  return {kept.value_or(measured.plan),
          kept ? "measured, " + file.string() : "measured; " + file.string() + " was not written"};
}

ProductChoice choose_products(const Config& config, bool on_cpu, const fs::path& directory) {
  const std::string& key = config.model.products;
  if (key != kAuto) {
    return {plan_of_text(key), "as model.products says"};
  }
  if (config.sp.virtual_ranks > 0) {
    return {{}, "LibTorch's, because of sp.virtual_ranks; model.products names others"};
  }
  if (!on_cpu ||
      (config.model.dtype != DType::kFloat32 && config.model.dtype != DType::kBFloat16)) {
    return {{}, "LibTorch's, which alone there are"};
  }
  return measured_products(directory);
}

ProductChoice choose_products_of_run(const Config& config, bool on_cpu, const fs::path& run_dir) {
  const fs::path file = run_dir / kRunFile;
  std::string before = text_in(file);
  before.erase(before.find_last_not_of(" \n") + 1);
  const auto plan_before = engine::parse_product_plan(before);
  if (plan_before && config.model.products == kAuto) {
    return {*plan_before, "as the run began, " + file.string()};
  }
  ProductChoice choice = choose_products(config, on_cpu);
  const std::string text = engine::text_of(choice.plan);
  if (plan_before && *plan_before != choice.plan) {
    choice.reason += "; changed from " + before + ", so what follows has other bits than without";
  }
  fs::create_directories(run_dir);
  if (std::ofstream out(file, std::ios::trunc); !(out << text << "\n" << std::flush)) {
    throw std::runtime_error(file.string() + ": cannot be written");
  }
  return choice;
}

engine::ProductPlan products_of(const Config& config) {
  return config.model.products == kAuto ? engine::ProductPlan()
                                        : plan_of_text(config.model.products);
}

}  // namespace ringside::rl
