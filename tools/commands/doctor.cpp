// Command `ringside doctor [RECIPE...]`: what this program and this machine have, what a recipe can
// reach, with advice, and how fast this device is. The exit code is 1 if something stops a run.
#include <cstdio>
#include <iostream>
#include <memory>

#include "rl/config/task.h"
#include "rl/preflight/preflight.h"
#include "rl/preflight/run_memory.h"
#include "rl/rewards/weighted_rewards.h"
#include "rl/setup/device_speeds.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/product_choice.h"
#include "tools/commands/commands.h"
#include "tools/commands/device_measurement.h"
#include "tools/commands/version.h"
#include "tools/doctor/library_versions.h"
#include "tools/doctor/machine_findings.h"
#include "tools/doctor/network_findings.h"

namespace ringside::tools {
namespace {

constexpr std::chrono::seconds kDeadline{2};  // for each connection

struct DoctorOptions {
  std::vector<std::string> words;
  bool measure = false;
  std::filesystem::path output = "device_speeds.json";
  std::string device = "auto";
};

void print_line(const char* what, double value, const char* unit, const sp::DeviceSpeeds* known,
                double sp::DeviceSpeeds::*field) {
  std::printf("%-28s %10.3g %s", what, value, unit);
  if (known != nullptr) {
    std::printf("   (table: %.3g)", known->*field / 1e9);
  }
  std::printf("\n");
}

// Bytes of the weights that workers get through shared memory; 0 if that is not known.
int64_t shared_bytes(const rl::Config& config) {
  const std::filesystem::path file = std::filesystem::path(config.model.path) / "config.json";
  if (!config.weights.shared_memory || !std::filesystem::exists(file)) {
    return 0;
  }
  std::error_code failed;
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(config.model.path, failed)) {
    if (entry.path().extension() == ".safetensors") {
      bytes += static_cast<int64_t>(entry.file_size(failed));
    }
  }
  return bytes;
}

// Whether this machine has the memory that `ringside run` would take; nothing if no model is named.
std::vector<Finding> memory_findings(const rl::Config& config) {
  const std::filesystem::path file = std::filesystem::path(config.model.path) / "config.json";
  if (config.model.path.empty() || !rl::device_problem(config, 0).empty()) {
    return {};
  }
  if (!std::filesystem::exists(file)) {
    return {{Health::kBad, "model.path: " + config.model.path + " has no config.json",
             "`ringside check` says more"}};
  }
  try {
    rl::RunPlace place;
    place.workers = !rl::uses_own_workers(config);
    const rl::MemoryFit fit = rl::compare_with_this_machine(
        config, rl::load_model_config(config, config.model.path), place);
    if (!fit.error.empty()) {
      return {{Health::kBad, "memory of the run", fit.error}};
    }
    if (!fit.warning.empty()) {
      return {{Health::kWarning, "memory of the run", fit.warning}};
    }
    return {{Health::kGood, "memory of the run: it fits", ""}};
  } catch (const std::exception& error) {
    return {{Health::kBad, std::string("memory of the run: ") + error_text(error),
             "`ringside check` says more"}};
  }
}

// What the recipe binds and connects to.
std::vector<Finding> recipe_findings(const rl::Config& config) {
  std::vector<Finding> findings;
  const auto add = [&](auto find, const char* key, const std::string& address) {
    try {
      findings.push_back(find(key, address, kDeadline));
    } catch (const std::invalid_argument& error) {
      findings.push_back({Health::kBad, std::string(key) + ": " + error.what(), "correct it"});
    }
  };
  if (const std::string problem = rl::device_problem(config, 0); !problem.empty()) {
    findings.push_back({Health::kBad, "model.device: " + problem,
                        "use a machine that has it, or model.device: auto"});
  }
  if (!rl::samples_completions(config)) {
    return findings;
  }
  add(bind_finding, "bridge.rollout_address", config.bridge.rollout_address);
  add(bind_finding, "bridge.weights_address", config.bridge.weights_address);
  if (config.rollout.server != rl::RolloutServer::kEmbedded) {
    add(server_finding, "rollout.server_options.url", config.rollout.server_options.url);
  }
  for (const rl::WeightedReward& reward : rl::parse_rewards(config.rollout.reward)) {
    if (reward.name == "http") {
      add(server_finding, "rollout.reward_options.http_url",
          config.rollout.reward_options.http_url);
    } else if (reward.name == "judge") {
      add(server_finding, "rollout.reward_options.judge_url",
          config.rollout.reward_options.judge_url);
    }
  }
  return findings;
}

// The kernels that a run on the CPU would multiply with; measures them if nobody has before.
Finding products_finding(const rl::Config& config) {
  try {
    const rl::ProductChoice choice = rl::choose_products(config, /*on_cpu=*/true);
    return {Health::kGood,
            "products on the CPU: " + engine::text_of(choice.plan) + " (" + choice.reason + ")",
            ""};
  } catch (const std::invalid_argument& error) {
    return {Health::kBad, error.what(), "correct it"};
  }
}

// Prints one line for each finding. Returns false if one is bad.
bool print_findings(const std::vector<Finding>& findings) {
  bool good = true;
  for (const Finding& finding : findings) {
    const char* mark = finding.health == Health::kGood      ? "ok      "
                       : finding.health == Health::kWarning ? "warning "
                                                            : "bad     ";
    std::cout << mark << finding.what;
    std::cout << (finding.advice.empty() ? "" : "; advice: " + finding.advice) << "\n";
    good = good && finding.health != Health::kBad;
  }
  return good;
}

int examine(const DoctorOptions& options) {
  std::optional<rl::LoadedConfig> loaded;
  if (!options.words.empty()) {
    loaded = load_or_print_errors(split_inputs(options.words));
    if (!loaded) {
      return kExitUsage;
    }
  }
  std::cout << version_text() << "\nlibraries: " << library_versions() << "\n";
  std::vector<Finding> findings = machine_findings(loaded ? shared_bytes(loaded->config) : 0);
  for (Finding& finding : local_network_findings()) {
    findings.push_back(std::move(finding));
  }
  findings.push_back(products_finding(loaded ? loaded->config : rl::Config()));
  if (loaded) {
    for (Finding& finding : memory_findings(loaded->config)) {
      findings.push_back(std::move(finding));
    }
    for (Finding& finding : recipe_findings(loaded->config)) {
      findings.push_back(std::move(finding));
    }
  }
  return print_findings(findings) ? kExitOk : kExitFailure;
}

int doctor(const DoctorOptions& options) {
  if (!options.measure) {
    return examine(options);
  }
  std::cout << version_text() << "\n";
  if (!check_writable("--output", options.output)) {
    return kExitUsage;
  }
  const auto choice = engine::choose_device(options.device, 0);
  if (!choice.error.empty()) {
    std::cerr << "--device " << options.device << ": " << choice.error << "\n";
    return kExitUsage;
  }
  std::vector<std::string> notes;
  const sp::DeviceSpeeds found = measure_device(choice.device, notes);
  const sp::DeviceSpeeds* known = sp::find_device(found.name);
  const auto line = [&](const char* what, double sp::DeviceSpeeds::*field, const char* unit) {
    print_line(what, found.*field / 1e9, unit, known, field);
  };
  std::cout << "\nmeasured: " << found.name << "\n" << std::flush;
  line("attention", &sp::DeviceSpeeds::attention_flops_per_s, "GFLOP/s");
  line("matrix product", &sp::DeviceSpeeds::gemm_flops_per_s, "GFLOP/s");
  line("both in fp32", &sp::DeviceSpeeds::wide_flops_per_s, "GFLOP/s");
  line("to a rank of this machine", &sp::DeviceSpeeds::intra_node_bytes_per_s, "GB/s");
  line("to another machine", &sp::DeviceSpeeds::inter_node_bytes_per_s, "GB/s");
  line("memory, read", &sp::DeviceSpeeds::memory_bytes_per_s, "GB/s");
  std::printf("%-28s %10.3g microseconds\n", "a transfer without bytes",
              1e6 * found.transfer_seconds);
  for (const std::string& note : notes) {
    std::cout << note << "\n";
  }
  rl::write_device_speeds(found, options.output);
  std::cout << "written to " << options.output.string()
            << "; predictions use it with sp.device_speeds=" << options.output.string() << "\n";
  return kExitOk;
}

}  // namespace

void add_doctor_command(CommandContext& context) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      context.app.add_subcommand("doctor",
                                 "Print versions, devices, limits and what a recipe can reach, "
                                 "with advice; with --measure how "
                                 "fast this machine's device is");
  command->add_option("inputs", options->words,
                      "recipes (YAML), and key.sub=value overrides: examine what they connect to");
  command->add_flag("--measure", options->measure,
                    "measure attention, matrix products and transfers between two ranks; takes "
                    "under a minute, on an idle machine");
  command->add_option("--output", options->output, "where --measure writes, for sp.device_speeds")
      ->capture_default_str();
  command->add_option("--device", options->device, "device to measure: auto, cpu or cuda")
      ->capture_default_str();
  command->callback([options, &context] { context.exit_code = doctor(*options); });
}

}  // namespace ringside::tools
