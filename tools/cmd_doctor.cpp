#include "tools/cmd_doctor.h"

#include <cstdio>
#include <iostream>
#include <memory>

#include "rl/setup/device_speeds.h"
#include "tools/device_measurement.h"
#include "tools/version.h"

namespace ringside::tools {
namespace {

struct DoctorOptions {
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

int doctor(const DoctorOptions& options) {
  std::cout << version_text() << "\n";
  if (!options.measure) {
    return kExitOk;
  }
  if (!check_writable("--output", options.output)) return kExitUsage;
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
  CLI::App* command = context.app.add_subcommand(
      "doctor",
      "Print versions and devices; with --measure also how fast this machine's device is");
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
