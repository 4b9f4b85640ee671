// Bench of publishing the quickstart's model: steps of AdamW at a post-training learning rate on
// real gradients. Each version is sent to a worker as a delta, and then the same bytes as a full
// version.
//
// Usage: bench_small_model [--steps N] [--learning-rate X] [--out FILE]
// Rows are appended to FILE.
// Shapes: d documents, t tokens of each, s = d t, H query heads, K key/value heads, D head size.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <thread>

#include "engine/models/decoder.h"
#include "engine/optim/adamw.h"
#include "rl/publish/weight_snapshot.h"
#include "rollout_bridge/weights/shared_block.h"
#include "rollout_bridge/weights/snapshot.h"
#include "tools/bench/bridge/bench.h"

namespace ringside::bench {
namespace {

using namespace bridge;
using Snapshot = std::shared_ptr<const WeightSnapshot>;
constexpr std::chrono::seconds kPatience{60};
constexpr int64_t kDigits = 8, kTokens = 2 * kDigits + 1, kDocuments = 64;
constexpr int kWarmStart = 150;
constexpr std::chrono::milliseconds kIdle{20};

// tools/quickstart_task.py's.
engine::ModelConfig quickstart_model() {
  engine::ModelConfig c;
  c.vocab_size = 48;
  c.hidden_size = 128;
  c.intermediate_size = 384;
  c.num_hidden_layers = 4;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 32;
  c.max_position_embeddings = 256;
  c.attention.qk_norm = true;
  c.tie_word_embeddings = true;
  return c;
}

class EqualDocuments final : public engine::AttentionBackend {
 public:
  at::Tensor attend(const engine::AttentionSpec& /*spec*/, const at::Tensor& q_sHD,
                    const at::Tensor& k_sKD, const at::Tensor& v_sKD) override {
    const auto heads_first = [](const at::Tensor& x) {
      return x.view({kDocuments, kTokens, x.size(1), x.size(2)}).transpose(1, 2);
    };
    const auto [out_dHtD, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        heads_first(q_sHD), heads_first(k_sKD), heads_first(v_sKD), 0.0, /*is_causal=*/true);
    return out_dHtD.transpose(1, 2).reshape(q_sHD.sizes());
  }
};

// Next-token loss on "digits > the same digits sorted".
void add_gradients(engine::Decoder& decoder) {
  const at::Tensor digits = at::randint(10, {kDocuments, kDigits}, at::kLong);
  const at::Tensor sorted = std::get<0>(digits.sort(1));
  const at::Tensor ids = at::cat({digits, at::full({kDocuments, 1}, 10, at::kLong), sorted}, 1);
  const at::Tensor positions = at::arange(kTokens, at::kLong).repeat({kDocuments});
  EqualDocuments attention;
  const at::Tensor hidden = decoder.forward(ids.view(-1), positions, attention);
  const at::Tensor from = hidden.view({kDocuments, kTokens, -1})
                              .slice(1, kDigits, kTokens - 1)
                              .reshape({kDocuments * kDigits, -1});
  const auto scores = decoder.score(from, sorted.reshape(-1), at::ones({kDocuments * kDigits}));
  for (engine::ParamUnit* unit : decoder.units()) {
    unit->zero_grad();
  }
  (-scores.logprobs_n.mean()).backward();
}

// A worker that installs the weights in a model of its own and commits their hash.
class Worker {
 public:
  explicit Worker(const std::string& address)
      : decoder_(quickstart_model(), at::kFloat),
        endpoint_([&] {
          WorkerOptions o;
          o.rollout_address = address;
          o.worker_id = "worker";
          return o;
        }()),
        thread_([this](const std::stop_token& stop) {
          at::set_num_threads(1);
          while (!stop.stop_requested()) {
            const auto event = endpoint_.poll(std::chrono::milliseconds(50));
            const auto* ready = event ? std::get_if<WeightsReady>(&*event) : nullptr;
            if (ready == nullptr) {
              continue;
            }
            const Manifest& m = ready->snapshot->manifest;
            rl::install_weights(decoder_, *ready->snapshot);
            (void)endpoint_.commit_weights(m.version, rl::installed_root_hash(decoder_, m));
          }
        }) {}

 private:
  engine::Decoder decoder_;
  WorkerEndpoint endpoint_;
  std::jthread thread_;
};

class Run {
 public:
  explicit Run(double learning_rate)
      : learning_rate_(learning_rate), decoder_(quickstart_model(), at::kFloat), trainer_([&] {
          TrainerOptions o;
          o.run_id = "bench";
          o.trainer_term = 1;
          o.journal.directory = folder_.path() / "journal";
          return o;
        }()) {
    at::manual_seed(1);
    decoder_.init_random(1, 0.02);
    engine::AdamW warm(decoder_.units(), {.beta2 = 0.95});
    for (int i = 0; i < kWarmStart; ++i) {
      add_gradients(decoder_);
      warm.step(2e-3);
    }
    optimizer_.emplace(decoder_.units(), engine::AdamWOptions{.beta2 = 0.95});
    worker_.emplace(trainer_.rollout_address());
    base_ = snapshot(++version_);
    std::vector<double> ignored;
    (void)publish(base_, ignored);
  }

  void step() {
    add_gradients(decoder_);
    optimizer_->step(learning_rate_);
    auto begin = Clock::now();
    auto tensors = rl::copy_weights(decoder_, at::kBFloat16);
    copy_s.push_back(seconds_since(begin));
    begin = Clock::now();
    auto next = std::make_shared<WeightSnapshot>(
        *make_snapshot("bench", 1, ++version_, std::move(tensors)));
    hash_s.push_back(seconds_since(begin));
    begin = Clock::now();
    next->delta = make_delta(*base_, *next);
    encode_s.push_back(seconds_since(begin));
    if (!next->delta) {
      throw std::runtime_error("the changes are no shorter than the weights");
    }
    for (const TensorEntry& t : next->delta->manifest.tensors) {
      changed += static_cast<double>(t.changed);
      payload_bytes += static_cast<double>(t.payload_bytes);
      elements += static_cast<double>(t.bytes) / 2;
    }
    delta_s.push_back(publish(next, delta_cpu_s));
    base_ = snapshot(++version_);  // the same bytes under another version
    dense_s.push_back(publish(base_, dense_cpu_s));
    const auto block = blocks_.take(engine::WeightView(decoder_).bytes(at::kBFloat16));
    base_ = make_snapshot("bench", 1, ++version_, rl::copy_weights(decoder_, at::kBFloat16, block),
                          block);
    std::vector<double> ignored;
    shared_s.push_back(publish(base_, ignored));
  }

  void check() const {
    const BridgeCounters c = trainer_.counters();
    if (c.delta_staged != delta_s.size() || c.shared_staged != shared_s.size() ||
        c.delta_refetched != 0) {
      throw std::runtime_error("delta: staged " + std::to_string(c.delta_staged) + " of " +
                               std::to_string(delta_s.size()) + ", shared " +
                               std::to_string(c.shared_staged));
    }
  }

  std::vector<double> copy_s, hash_s, encode_s, delta_s, dense_s, shared_s, delta_cpu_s,
      dense_cpu_s;
  double changed = 0, payload_bytes = 0, elements = 0;

 private:
  Snapshot snapshot(int64_t version) const {
    return rl::snapshot_weights(decoder_, at::kBFloat16, "bench", 1, version);
  }
  // Seconds until the worker has committed; adds the CPU seconds to `cpu_s`.
  double publish(const Snapshot& weights, std::vector<double>& cpu_s) {
    std::this_thread::sleep_for(kIdle);  // so that neither way starts right after a training step
    const double cpu = cpu_seconds();
    const auto begin = Clock::now();
    trainer_.publish(weights);
    if (!wait_for_commit(trainer_, weights->manifest.version, 1, kPatience)) {
      throw std::runtime_error("a version was not committed");
    }
    const double seconds = seconds_since(begin);
    cpu_s.push_back(cpu_seconds() - cpu);
    return seconds;
  }

  double learning_rate_;
  engine::Decoder decoder_;
  std::optional<engine::AdamW> optimizer_;
  ScratchFolder folder_;
  TrainerEndpoint trainer_;
  int64_t version_ = -1;
  Snapshot base_;
  SharedBlocks blocks_;
  std::optional<Worker> worker_;
};

nlohmann::json row_of(const Run& run, int steps, double learning_rate) {
  const double dense = median_after_warm_up(run.dense_s), delta = median_after_warm_up(run.delta_s);
  const double hash = median_after_warm_up(run.hash_s), encode = median_after_warm_up(run.encode_s);
  const double whole = run.elements * 2;
  return {{"what", "publish quickstart model"},
          {"curve", false},
          {"workers", 1},
          {"steps", steps},
          {"learning_rate", learning_rate},
          {"bytes", whole / steps},
          {"density", run.changed / run.elements},
          {"seconds", delta},
          {"dense_seconds", dense},
          {"shared_seconds", median_after_warm_up(run.shared_s)},
          {"cpu_seconds", median_after_warm_up(run.delta_cpu_s)},
          {"dense_cpu_seconds", median_after_warm_up(run.dense_cpu_s)},
          {"copy_seconds", median_after_warm_up(run.copy_s)},
          {"hash_seconds", hash},
          {"encode_seconds", encode},
          {"of_dense_time", delta / dense},
          {"of_dense_time_with_encode", (delta + encode) / dense},
          {"of_dense_bytes", run.payload_bytes / whole},
          {"bytes_per_change", run.payload_bytes / run.changed}};
}

int main_of(int argc, char** argv) {
  CLI::App app{"Publishing the quickstart's model"};
  int steps = 40;
  double learning_rate = 1e-6;
  std::string out;
  app.add_option("--steps", steps)->check(CLI::Range(2, 10000));
  app.add_option("--learning-rate", learning_rate);
  app.add_option("--out", out, "add the row to this file of bench_bridge's");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  Run run(learning_rate);
  for (int i = 0; i < steps; ++i) {
    run.step();
  }
  run.check();
  const nlohmann::json row = row_of(run, steps, learning_rate);
  std::printf("%s\n", row.dump(1).c_str());
  if (!out.empty()) {
    nlohmann::json all = nlohmann::json::parse(std::ifstream(out));
    all.at("rows").push_back(row);
    std::ofstream(out) << all.dump(1) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace ringside::bench

int main(int argc, char** argv) {
  try {
    return ringside::bench::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_small_model: %s\n", error.what());
    return 1;
  }
}
