// Bench of experts: training steps of a Qwen3-MoE on one rank and on two, whose experts are sharded
// like all parameters or divided between the ranks, for beside_transformers.py. Prints one JSON
// object per line.
//
// Usage: bench_experts MODEL_DIR LENGTH,LENGTH,... [repetitions]
// Ranks are threads of this process over shared memory, with two threads in all. Repetitions of
// all variants alternate; the median is reported. Time in exchanges is that of rank 0 between start
// and end of all-to-alls of rows and counts, waiting for the other rank included.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "engine/io/hf_directory.h"
#include "engine/params/sharding.h"
#include "engine/runner/model_runner.h"
#include "sp/batch/collator.h"
#include "tools/bench/rank_bench.h"

namespace {

using namespace ringside;
using bench::RankBench;

constexpr int kThreads = 2;  // in all
const sp::Axes kShard = sp::axes::fsdp(sp::CpFsdpMode::kAll);
const sp::Axes kReplicas = sp::axes::without_fsdp(sp::CpFsdpMode::kAll);

struct Variant {
  std::string name;
  int64_t ranks = 1;
  int64_t expert = 1;
};

const std::vector<Variant> kVariants{
    {"1 rank"}, {"2 ranks, experts sharded", 2}, {"2 ranks, experts divided", 2, 2}};

// Adds up the seconds of all-to-alls.
class TimedCommunicator final : public sp::Communicator {
 public:
  TimedCommunicator(std::shared_ptr<sp::Communicator> inner, double& seconds)
      : inner_(std::move(inner)), seconds_(seconds) {}
  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }

 protected:
  std::unique_ptr<sp::Transfer> do_start_all_reduce(at::Tensor& tensor,
                                                    Reduction /*reduction*/) override {
    return inner_->start_all_reduce_sum(tensor, kTag);
  }
  std::unique_ptr<sp::Transfer> do_start_all_to_all(
      at::Tensor& receive, at::Tensor& send, const std::vector<int64_t>& receive_counts,
      const std::vector<int64_t>& send_counts) override {
    const auto begin = RankBench::Clock::now();
    inner_->start_all_to_all(send, send_counts, receive, receive_counts, kTag)->wait();
    seconds_ += std::chrono::duration<double>(RankBench::Clock::now() - begin).count();
    return std::make_unique<Done>();
  }
  std::unique_ptr<sp::Transfer> do_start_all_gather(at::Tensor& gathered,
                                                    const at::Tensor& tensor) override {
    return inner_->start_all_gather(tensor, gathered, kTag);
  }
  void do_broadcast(at::Tensor& tensor, int64_t root) override {
    inner_->broadcast(tensor, root, kTag);
  }
  std::unique_ptr<sp::Transfer> do_send_recv(const at::Tensor& send, int64_t to,
                                             at::Tensor& receive, int64_t from) override {
    return inner_->send_recv(send, to, receive, from, kTag);
  }
  std::vector<std::unique_ptr<sp::Transfer>> do_start_transfers(
      std::span<const sp::PointToPoint> transfers) override {
    return inner_->start_transfers(transfers, kTag);
  }

 private:
  struct Done final : sp::Transfer {
    void wait() override {}
  };
  static constexpr const char* kTag = "timed";
  std::shared_ptr<sp::Communicator> inner_;
  double& seconds_;
};

std::vector<sp::Document> documents_of(const std::vector<int64_t>& lengths, int64_t vocab) {
  std::vector<sp::Document> documents;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    sp::Document document;
    for (int64_t i = 0; i < lengths[d]; ++i) {
      document.ids.push_back((7 * i + 13 * static_cast<int64_t>(d) + 1) % vocab);
      if (i > 0) {
        document.entries.add(i - 1, document.ids.back());
      }
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

// What one rank trains.
struct Training {
  std::unique_ptr<engine::ModelRunner> runner;
  std::vector<sp::MicroBatch> batches;
  std::vector<engine::ModelInput> inputs;
};

engine::ComputeContext context_of(const Variant& variant, const sp::Mesh& mesh,
                                  const sp::ProcessGroups& groups, double& exchange_seconds) {
  engine::ComputeContext context(at::kFloat);
  if (variant.ranks == 1) {
    return context;
  }
  context.sharding = std::make_shared<const engine::Sharding>(
      engine::Sharding{groups.tensors(kShard), groups.tensors(kReplicas), /*stage=*/3});
  if (variant.expert > 1) {
    auto ranks = groups.tensors(sp::axes::kExpert);
    if (mesh.rank() == 0) {
      ranks = std::make_shared<TimedCommunicator>(ranks, exchange_seconds);
    }
    context.experts = std::make_shared<const engine::ExpertSharding>(engine::ExpertSharding{
        std::move(ranks), std::make_shared<const engine::Sharding>(engine::Sharding{
                              groups.tensors(sp::axes::kExpertShard), groups.tensors(kReplicas)})});
  }
  return context;
}

RankBench::Setup step_of(const Variant& variant, const std::string& model,
                         const std::vector<int64_t>& lengths, double& exchange_seconds) {
  return [&variant, &exchange_seconds, model, lengths](
             const sp::Mesh& mesh, const sp::ProcessGroups& groups) -> RankBench::Body {
    auto decoder = std::make_unique<engine::Decoder>(
        engine::load_model_config(model), context_of(variant, mesh, groups, exchange_seconds));
    engine::load_weights(model, *decoder);
    const engine::ModelConfig config = decoder->config();
    int64_t tokens = 0;
    for (const int64_t length : lengths) {
      tokens += length;
    }
    auto training = std::make_shared<Training>();
    training->runner = std::make_unique<engine::ModelRunner>(
        std::make_unique<engine::LanguageModel>(std::move(decoder)), groups,
        engine::AdamWOptions{});
    training->batches =
        sp::collate(documents_of(lengths, config.vocab_size), mesh,
                    {{config.num_attention_heads, config.num_key_value_heads, config.head_dim},
                     tokens / mesh.size(sp::axes::kBatch),
                     {}});
    for (const sp::MicroBatch& batch : training->batches) {
      training->inputs.push_back({&batch, at::ones({batch.num_entries()})});
    }
    return [training] {
      training->runner->train(training->inputs, [](const engine::HeadOutput& output, auto) {
        return output.logprobs_n.sum() * -1e-4;
      });
      training->runner->step(1e-6, 1.0);
    };
  };
}

void measure(const std::string& model, const std::vector<int64_t>& lengths, int repetitions) {
  std::vector<std::unique_ptr<RankBench>> benches;
  std::vector<double> exchange_seconds(kVariants.size());
  for (std::size_t v = 0; v < kVariants.size(); ++v) {
    const Variant& variant = kVariants[v];
    benches.push_back(std::make_unique<RankBench>(
        sp::MeshShape{.dp_shard = variant.ranks, .expert = variant.expert}, kThreads,
        step_of(variant, model, lengths, exchange_seconds[v]),
        std::vector<sp::Axes>{kShard, kReplicas, sp::axes::kExpert, sp::axes::kExpertShard}));
    benches.back()->run();  // warm-up
    exchange_seconds[v] = 0.0;
  }
  std::vector<std::vector<double>> seconds(kVariants.size());
  for (int r = 0; r < repetitions; ++r) {
    for (std::size_t v = 0; v < kVariants.size(); ++v) {
      seconds[v].push_back(benches[v]->run());
    }
  }
  int64_t tokens = 0;
  for (const int64_t length : lengths) {
    tokens += length;
  }
  for (std::size_t v = 0; v < kVariants.size(); ++v) {
    double all = 0.0;
    for (const double each : seconds[v]) {
      all += each;
    }
    const nlohmann::ordered_json line{
        {"variant", kVariants[v].name},
        {"tokens", tokens},
        {"seconds", bench::median(seconds[v])},
        {"tokens_per_s", static_cast<double>(tokens) / bench::median(seconds[v])},
        {"share_in_exchanges", exchange_seconds[v] / all}};
    std::printf("%s\n", line.dump().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // its map is not made for ranks as threads
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_experts MODEL LENGTHS [REPETITIONS]\n");
    return 2;
  }
  std::vector<int64_t> lengths;
  std::istringstream text(argv[2]);
  for (std::string length; std::getline(text, length, ',');) {
    lengths.push_back(std::stoll(length));
  }
  measure(argv[1], lengths, argc > 3 ? std::atoi(argv[3]) : 3);
  return 0;
}
