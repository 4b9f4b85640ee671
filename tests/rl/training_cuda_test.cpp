// Guards training on a CUDA device: metrics, weights or moments that differ from the CPU's by more
// than rounding, results that differ between two runs with deterministic algorithms, a memory peak
// that is not what `ringside check` predicts. Linked wherever there is nvcc, run where there is a
// GPU (ctest label gpu); elsewhere it says that it ran nothing.
//
// tools/gpu_check.sh also runs the hidden cases [digests] and [memory]. RINGSIDE_TEST_DEVICE=cpu
// runs everything on the CPU, to try the script and the comparison on a machine without a GPU.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "engine/device/device_backend.h"
#include "engine/device/rank_thread.h"
#include "engine/io/model_config_json.h"
#include "engine/io/safetensors.h"
#include "rl/setup/memory_of_rank.h"
#include "rl/setup/sharding.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/training_cases.h"

namespace ringside {
namespace {

using test::Part;
namespace fs = std::filesystem;

std::string wanted_device() {
  const char* word = std::getenv("RINGSIDE_TEST_DEVICE");
  return word == nullptr ? "cuda" : word;
}

// Devices that ranks can have; a rank on the CPU has one always.
int64_t num_devices() {
  if (wanted_device() == "cpu") {
    return 4;
  }
  const int64_t found = engine::device_backend(c10::kCUDA).device_count();
  if (found == 0) {
    WARN("no GPU: compiled and linked, not run");
  }
  return found;
}

nlohmann::json model_json(int64_t hidden, int64_t layers, int64_t vocab) {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"model_type", "qwen3"},
          {"vocab_size", vocab},
          {"hidden_size", hidden},
          {"intermediate_size", 3 * hidden},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", hidden / 2},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-6},
          {"attention_bias", false},
          {"eos_token_id", 1},
          {"rope_parameters", {{"rope_theta", 10000.0}, {"rope_type", "default"}}}};
}

// Groups of four completions of these lengths, with rewards that differ inside a group.
void write_rollouts(const fs::path& path, int64_t groups, const std::vector<int64_t>& lengths,
                    int64_t prompt, int64_t vocab) {
  std::ofstream out(path);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t length = lengths[(g + i) % lengths.size()];
      const auto ids = [&](int64_t n, int64_t step) {
        std::vector<int64_t> all(n);
        for (int64_t k = 0; k < n; ++k) {
          all[k] = 2 + (step * k + 5 * g + step) % (vocab - 2);
        }
        return all;
      };
      out << nlohmann::json{{"group_id", g},
                            {"prompt_ids", ids(prompt, 3)},
                            {"completion_ids", ids(length, 7 + i)},
                            {"logprobs", std::vector<double>(length, -std::log(vocab))},
                            {"reward", i % 3 == 0 ? 1.0 : 0.25 * static_cast<double>(i)},
                            {"finish_reason", "length"}}
          << "\n";
    }
  }
}

using RankBody = std::function<void(const sp::Mesh&, const sp::ProcessGroups&)>;

void run_cpu_ranks(const rl::Config& config, const RankBody& body) {
  test::run_ranks(rl::mesh_shape(config.parallel), body, std::chrono::seconds(30),
                  rl::sharding_axes(config.parallel));
}

// Ranks as threads, each with a device of its own.
void run_device_ranks(const rl::Config& config, const RankBody& body) {
  if (wanted_device() == "cpu") {
    run_cpu_ranks(config, body);
    return;
  }
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const sp::MeshShape shape = rl::mesh_shape(config.parallel);
  std::vector<std::exception_ptr> errors(shape.world_size());
  {
    std::vector<std::jthread> threads;
    for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
          const engine::RankThread thread(device);
          const sp::Mesh mesh(shape, rank);
          body(mesh, engine::connect_groups(mesh, {store, "127.0.0.1", std::chrono::seconds(120)},
                                            device, rl::sharding_axes(config.parallel)));
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

struct Task {
  Task()
      : models(model_json(/*hidden=*/32, /*layers=*/2, /*vocab=*/64)),
        rollouts(folder.path() / "rollouts.jsonl") {
    write_rollouts(rollouts, /*groups=*/4, {5, 12, 9, 7}, /*prompt=*/7, /*vocab=*/64);
  }
  test::TemporaryDirectory folder;
  test::Models models;
  fs::path rollouts;
};

void train_on_device(const rl::Config& config, const Task& task, const fs::path& run_dir) {
  run_device_ranks(config, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    test::train(config, task.rollouts, run_dir, mesh, comms);
  });
}

// Weights and moments, by file and name.
std::map<std::string, at::Tensor> tensors_of(const fs::path& run_dir) {
  std::map<std::string, at::Tensor> all;
  for (const std::string& file : test::tensor_files(run_dir)) {
    const engine::SafetensorsFile in(run_dir / file);
    for (std::size_t i = 0; i < in.entries().size(); ++i) {
      all[file + "/" + in.entries()[i].name] = in.tensor(i).to(at::kDouble);
    }
  }
  return all;
}

double length_of(const at::Tensor& x) { return x.norm().item<double>(); }

// Three steps change a weight by about 1e-4 of itself. Moments are made of gradients alone, and so
// are the biases, which begin at 0.
constexpr double kWeights = 1e-5, kMoments = 2e-3, kMetrics = 1e-3;

bool is_of_gradients(const std::string& name) {
  return name.find("exp_avg") != std::string::npos || name.find(".bias") != std::string::npos;
}

// The first key, file or tensor in which two runs differ by more than rounding in fp32 explains;
// empty when there is none.
std::string first_difference(const fs::path& a, const fs::path& b) {
  const auto steps_a = test::metrics_of(a), steps_b = test::metrics_of(b);
  if (steps_a.size() != 3 || steps_b.size() != 3) {
    return "number of steps";
  }
  for (std::size_t step = 0; step < 3; ++step) {
    for (const auto& [key, value] : steps_a[step].items()) {
      if (!value.is_number() || !steps_b[step].contains(key)) {
        continue;
      }
      const double x = value.get<double>(), y = steps_b[step][key].get<double>();
      if (!(std::abs(x - y) <= kMetrics * std::max(0.01, std::abs(x)))) {
        return key + " of step " + std::to_string(step + 1) + ": " + std::to_string(x) + ", " +
               std::to_string(y);
      }
    }
  }
  const auto tensors_a = tensors_of(a), tensors_b = tensors_of(b);
  for (const auto& [name, x] : tensors_a) {
    const auto found = tensors_b.find(name);
    if (found == tensors_b.end()) {
      return name + " is missing";
    }
    const double distance = length_of(x - found->second);
    if (!(distance <= (is_of_gradients(name) ? kMoments : kWeights) * length_of(x))) {
      return name + ": " + c10::str(distance, " of ", length_of(x));
    }
  }
  return tensors_a.size() == tensors_b.size() ? "" : "number of tensors";
}

std::vector<std::vector<Part>> cases_of(const test::Models& models) {
  using namespace test;
  const Part qwen3 = models.part("qwen3_tied");
  std::vector<std::vector<Part>> all;
  for (const Part& layout : kLayouts) {
    all.push_back({qwen3, layout, kAlgorithms[0], kDtypes[0], kRecomputations[0]});
  }
  for (const char* model :
       {"qwen2", "llama", "qwen3_moe", "deepseek_v3", "qwen3_next", "qwen3_5"}) {
    all.push_back(
        {models.part(model), kLayouts[0], kAlgorithms[0], kDtypes[0], kRecomputations[0]});
  }
  for (const Part& algorithm : {kAlgorithms[1], kAlgorithms[2]}) {
    all.push_back({qwen3, kLayouts[0], algorithm, kDtypes[0], kRecomputations[0]});
  }
  for (std::size_t i = 1; i < kRecomputations.size(); ++i) {
    all.push_back({qwen3, kLayouts[0], kAlgorithms[0], kDtypes[0], kRecomputations[i]});
  }
  return all;
}

std::string name_of(const std::vector<Part>& parts) {
  std::string name;
  for (const Part& part : parts) {
    name += (name.empty() ? "" : ", ") + part.name;
  }
  return name;
}

TEST_CASE("training in fp32 on CUDA devices is the CPU's but for rounding") {
  const int64_t devices = num_devices();
  const Task task;
  for (const auto& parts : cases_of(task.models)) {
    rl::Config config = test::config_of(parts);
    if (rl::mesh_shape(config.parallel).world_size() > devices) {
      if (devices > 0) {
        WARN("not run, it needs more devices than there are: " << name_of(parts));
      }
      continue;
    }
    INFO(name_of(parts));
    const test::TemporaryDirectory cpu, device;
    run_cpu_ranks(config, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
      test::train(config, task.rollouts, cpu.path(), mesh, comms);
    });
    train_on_device(config, task, device.path());
    CHECK(first_difference(cpu.path(), device.path()) == "");
  }
}

TEST_CASE("the comparison of two trainings sees a learning rate that is a fifth larger") {
  const Task task;
  const auto run = [&](const char* word, const fs::path& run_dir) {
    const rl::Config config =
        test::config_of({task.models.part("qwen3_tied"), test::kAlgorithms[0], {"", {word}}});
    test::run_ranks({}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
      test::train(config, task.rollouts, run_dir, mesh, comms);
    });
  };
  const test::TemporaryDirectory first, same, other;
  run("optimizer.learning_rate=1e-6", first.path());
  run("optimizer.learning_rate=1e-6", same.path());
  run("optimizer.learning_rate=1.2e-6", other.path());
  CHECK(first_difference(first.path(), same.path()) == "");
  CHECK(first_difference(first.path(), other.path()) != "");
}

// A hash of the bits of metrics and tensors, one line a case. gpu_check.sh compares those of runs
// with and without CUDA_LAUNCH_BLOCKING=1.
TEST_CASE("digests of deterministic trainings", "[.digests]") {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  const int64_t devices = num_devices();
  const Task task;
  for (std::vector<Part> parts : cases_of(task.models)) {
    for (const Part& dtype : {test::kDtypes[0], test::kDtypes[1]}) {
      parts[3] = dtype;
      const rl::Config config = test::config_of(parts);
      // In bf16 the flash kernel takes head dims that are multiples of 8; that model's is 12.
      if (rl::mesh_shape(config.parallel).world_size() > devices ||
          (parts[0].name == "deepseek_v3" && dtype.name == "bf16")) {
        continue;
      }
      const test::TemporaryDirectory folder;
      train_on_device(config, task, folder.path());
      std::string bits = nlohmann::json(test::metrics_of(folder.path())).dump();
      for (const std::string& file : test::tensor_files(folder.path())) {
        bits += test::bytes_of(folder.path() / file);
      }
      std::cout << "digest of " << name_of(parts) << ": " << std::hash<std::string>()(bits) << "\n";
    }
  }
}

// One line of JSON: the allocator's peak over a step beside the prediction. Every token but the
// prompt's is a loss token, and two full micro-batches make the step.
TEST_CASE("the peak of a step's device memory is what is predicted", "[.memory]") {
  if (num_devices() == 0) {
    return;
  }
  constexpr int64_t kTokens = 8192, kVocab = 16384;
  const test::TemporaryDirectory folder, run_dir;
  const test::Models models(model_json(/*hidden=*/256, /*layers=*/8, kVocab));
  const fs::path rollouts = folder.path() / "rollouts.jsonl";
  const int64_t length = wanted_device() == "cpu" ? 15 : kTokens / 8 - 1;
  write_rollouts(rollouts, /*groups=*/4, {length}, /*prompt=*/1, kVocab);
  rl::Config config = test::config_of({models.part("qwen3_tied"), test::kDtypes[1]});
  config.train.steps = 1;
  config.train.tokens_per_micro_batch = kTokens;
  config.sp.shared_prefix = false;
  const auto model = engine::load_model_config(config.model.path);
  if (wanted_device() != "cpu") {
    at::empty({1}, at::device(at::kCUDA));  // the allocator knows no device before its first use
    at::accelerator::resetPeakStats(0);
  }
  run_device_ranks(config, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    test::train(config, rollouts, run_dir.path(), mesh, comms);
  });
  const c10::Device device(wanted_device() == "cpu" ? c10::kCPU : c10::kCUDA);
  const int64_t predicted = rl::memory_of_rank(config, model, device).total();
  nlohmann::ordered_json line{{"tokens", kTokens}, {"predicted_bytes", predicted}};
  if (wanted_device() == "cpu") {
    line["measured_bytes"] = nullptr;  // the CPU's allocator does not count
  } else {
    line["measured_bytes"] = at::accelerator::getDeviceStats(0).allocated_bytes[0].peak;
    const double ratio = static_cast<double>(predicted) / line["measured_bytes"].get<double>();
    line["predicted_of_measured"] = ratio;
    CHECK(ratio > 0.9);
    CHECK(ratio < 1.1);
  }
  std::cout << line.dump() << "\n";
}

}  // namespace
}  // namespace ringside
