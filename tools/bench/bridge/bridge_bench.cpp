// Bench of the bridge over loopback TCP, beside raw ZeroMQ and memcpy. README.md describes it.
//
// Usage: bench_bridge [--out FILE] [--only ingress|publish] [--plain] [--repetitions N] [--mib N]
//                     [--workers N]... [--scale X]
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <thread>

#include "rl/rollouts/step_policy.h"
#include "tools/bench/bridge/bench.h"

namespace ringside::bench {

bridge::TrainerOptions trainer_options(const std::filesystem::path& folder, const Keys* keys) {
  bridge::TrainerOptions o;
  o.run_id = "bench";
  o.trainer_term = 1;
  o.journal.directory = folder / "journal";
  o.policy = rl::step_policy({});
  if (keys != nullptr) {
    o.curve = bridge::CurveServer{keys->trainer.secret_key, {{keys->worker.public_key, "bench"}}};
  }
  return o;
}

bridge::WorkerOptions worker_options(const std::string& address, const std::string& id,
                                     const Keys* keys) {
  bridge::WorkerOptions o;
  o.rollout_address = address;
  o.worker_id = id;
  if (keys != nullptr) {
    o.curve = bridge::CurveClient{keys->worker, keys->trainer.public_key};
  }
  return o;
}

namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown";
}

// A field as a number, "-" where the row has none.
std::string cell(const nlohmann::json& row, const char* key, double scale = 1) {
  if (!row.contains(key)) {
    return "-";
  }
  char text[32];
  const double value = row.at(key).get<double>() * scale;
  std::snprintf(text, sizeof text, value >= 100 ? "%.0f" : "%.2f", value);
  return text;
}

void print_row(const nlohmann::json& row) {
  std::string what = row.at("what").get<std::string>();
  if (row.contains("density")) {
    what += " " + cell(row, "density", 100) + " %";
  }
  if (row.contains("workers")) {
    what += " x" + std::to_string(row.at("workers").get<int>());
  }
  std::printf("%-34s %-5s %8s %9s %8s %8s %7s %7s %7s %7s %8s %8s\n", what.c_str(),
              row.at("curve").get<bool>() ? "CURVE" : "plain", cell(row, "seconds").c_str(),
              cell(row, "samples_per_s").c_str(), cell(row, "MB_per_s").c_str(),
              cell(row, "raw_MB_per_s").c_str(), cell(row, "of_raw").c_str(),
              cell(row, "of_raw_windowed").c_str(), cell(row, "of_raw_kept").c_str(),
              cell(row, "of_memcpy").c_str(), cell(row, "of_dense_time").c_str(),
              cell(row, "bytes_per_change").c_str());
  std::fflush(stdout);
}

void save(const std::string& path, const Options& options, const nlohmann::json& rows) {
  if (path.empty()) {
    return;
  }
  const nlohmann::json all = {{"cpu", cpu_name()},
                              {"cores", std::thread::hardware_concurrency()},
                              {"repetitions", options.repetitions},
                              {"snapshot_MiB", options.snapshot_mib},
                              {"rows", rows}};
  std::ofstream file(path);
  file << all.dump(1) << "\n";
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + path);
  }
}

int run(int argc, char** argv) {
  CLI::App app{"The bridge over loopback TCP beside raw ZeroMQ and memcpy"};
  Options options;
  std::string out, only;
  bool plain = false;
  app.add_option("--out", out, "write the figures to this JSON file");
  app.add_option("--only", only)->check(CLI::IsMember({"ingress", "publish"}));
  app.add_flag("--plain", plain, "leave CURVE out");
  app.add_option("--repetitions", options.repetitions)->check(CLI::Range(1, 1000));
  app.add_option("--mib", options.snapshot_mib, "MiB of weights")->check(CLI::Range(32, 65536));
  app.add_option("--workers", options.workers)->check(CLI::Range(1, 256));
  app.add_option("--scale", options.scale, "of the rollouts in a repetition")
      ->check(CLI::Range(0.01, 20.0));
  CLI11_PARSE(app, argc, argv);

  const Keys keys;
  nlohmann::json rows = nlohmann::json::array();
  std::size_t printed = 0;
  const auto show = [&] {
    for (; printed < rows.size(); ++printed) {
      print_row(rows[printed]);
    }
  };
  std::printf("%-34s %-5s %8s %9s %8s %8s %7s %7s %7s %7s %8s %8s\n", "", "", "s", "samples/s",
              "MB/s", "raw MB/s", "/raw", "/raw w4", "/kept", "/memcpy", "/dense s", "B/change");
  for (const Keys* k : {static_cast<const Keys*>(nullptr), &keys}) {
    if (k != nullptr && plain) {
      continue;
    }
    if (only != "publish") {
      run_ingress(options, k, rows);
    }
    show();
    save(out, options, rows);
    if (only != "ingress") {
      run_publish(options, k, rows);
    }
    show();
    save(out, options, rows);  // after each row, so that an interrupted run keeps its rows
  }
  return 0;
}

}  // namespace
}  // namespace ringside::bench

int main(int argc, char** argv) {
  try {
    return ringside::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_bridge: %s\n", error.what());
    return 1;
  }
}
