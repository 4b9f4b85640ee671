// Bench of context parallelism: attention forward and backward, and a whole step of a decoder, by
// every method at one rank and at two, with the same total number of threads. Prints one JSON
// object per line; plot.py draws them.
//
// Usage: bench_cp [tokens] [repetitions] [regime]
//   regime: part of a name; attention alone, in regimes of such a name
// Ranks are threads of this process, over shared memory unless a method says Gloo. A method's time
// is that of its slowest rank. Repetitions of all methods alternate, and the median is reported.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "engine/runner/sequence_parallel_attention.h"
#include "sp/attention/attention.h"
#include "sp/batch/collator.h"
#include "sp/mesh/process_groups.h"
#include "tools/bench/rank_bench.h"

namespace {

using namespace ringside;
using nlohmann::json;

constexpr int kThreads = 2;  // in all
const sp::HeadShape kHeads{8, 2, 64};

struct Regime {
  std::string name;
  sp::SegmentForest forest;
};

struct Method {
  std::string name;
  sp::MeshShape shape;
  sp::RingImpl ring_impl;
  sp::Placement placement;
  sp::RankTransport transport = sp::RankTransport::kAuto;
};

const std::vector<Method> kMethods{
    {"1 rank", {1, 1, 1}, sp::RingImpl::kP2p, sp::Placement::kDocumentAware},
    {"ulysses 2", {1, 1, 2}, sp::RingImpl::kP2p, sp::Placement::kDocumentAware},
    {"ulysses 2, Gloo",
     {1, 1, 2},
     sp::RingImpl::kP2p,
     sp::Placement::kDocumentAware,
     sp::RankTransport::kGloo},
    {"p2p 2", {1, 2, 1}, sp::RingImpl::kP2p, sp::Placement::kDocumentAware},
    {"all-gather 2", {1, 2, 1}, sp::RingImpl::kAllGather, sp::Placement::kDocumentAware},
    {"p2p 2, zigzag", {1, 2, 1}, sp::RingImpl::kP2p, sp::Placement::kZigzag},
    {"all-gather 2, zigzag", {1, 2, 1}, sp::RingImpl::kAllGather, sp::Placement::kZigzag},
};

// 8 groups of 16 completions whose prompt is four times as long as one of them.
std::vector<sp::Segment> groups(int64_t tokens, bool shared) {
  const int64_t completion = tokens / (8 * 20);
  std::vector<sp::Segment> segments;
  for (int64_t g = 0; g < 8; ++g) {
    const auto prompt = static_cast<int64_t>(segments.size());
    if (shared) {
      segments.push_back({-1, 4 * completion});
    }
    for (int64_t c = 0; c < 16; ++c) {
      segments.push_back({shared ? prompt : -1, shared ? completion : 5 * completion});
    }
  }
  return segments;
}

std::vector<Regime> regimes(int64_t tokens) {
  return {{"few long documents", sp::SegmentForest::of_documents({tokens / 2, tokens / 2})},
          {"many short documents",
           sp::SegmentForest::of_documents(std::vector<int64_t>(64, tokens / 64))},
          {"groups, shared prompt", sp::SegmentForest(groups(tokens, true))},
          {"groups, unshared", sp::SegmentForest(groups(tokens, false))}};
}

struct Measurement {
  double seconds = 0;  // slowest rank, median of the repetitions
  int64_t bytes = 0;   // that the busiest rank sent, forward and backward
  int64_t pairs = 0;   // query-key pairs, all ranks
};

using bench::median;
using Bench = bench::RankBench;

Bench::Setup attention_of(const Regime& regime, const Method& method) {
  return [&regime, &method](const sp::Mesh& mesh, const sp::ProcessGroups& comms) -> Bench::Body {
    const sp::SequenceLayout layout(regime.forest, mesh.shape().ring, mesh.shape().ulysses,
                                    method.placement);
    const auto plan = std::make_shared<const sp::AttentionPlan>(
        sp::plan_attention(layout, kHeads, mesh.sp_rank(), {method.ring_impl}));
    const auto random = [&](int64_t heads) {
      return at::randn({plan->local_rows(), heads, kHeads.head_dim});
    };
    const at::Tensor q = random(kHeads.num_query_heads).requires_grad_(),
                     k = random(kHeads.num_kv_heads).requires_grad_(),
                     v = random(kHeads.num_kv_heads).requires_grad_(),
                     dout = random(kHeads.num_query_heads);
    const sp::AttentionContext context{sp::cpu_kernels()->prepare(plan, q.options()),
                                       comms.tensors(sp::axes::kUlysses),
                                       comms.tensors(sp::axes::kRing)};
    return [=] {
      for (const at::Tensor* x : {&q, &k, &v}) {
        x->mutable_grad().reset();
      }
      sp::attention(q, k, v, context, {0.125, {}}).backward(dout);
    };
  };
}

int64_t pairs_of(const sp::SegmentForest& forest) {
  int64_t pairs = 0;
  for (int64_t s = 0; s < forest.num_segments(); ++s) {
    pairs += forest.attended_pairs(s, {0, forest.length(s)});
  }
  return pairs;
}

// Forward 4 H D per pair, backward 2.5 times that.
double attended_flops(int64_t pairs) {
  return 3.5 * 4.0 * static_cast<double>(pairs * kHeads.num_query_heads * kHeads.head_dim);
}

void measure_attention(const Regime& regime, int repetitions) {
  std::vector<std::unique_ptr<Bench>> benches;
  for (const Method& method : kMethods) {
    benches.push_back(std::make_unique<Bench>(method.shape, kThreads, attention_of(regime, method),
                                              std::vector<sp::Axes>{}, method.transport));
    benches.back()->run();  // warm-up
  }
  std::vector<std::vector<double>> seconds(kMethods.size());
  for (int r = 0; r < repetitions; ++r) {
    for (std::size_t m = 0; m < kMethods.size(); ++m) {
      seconds[m].push_back(benches[m]->run());
    }
  }
  const int64_t pairs = pairs_of(regime.forest);
  const double single = median(seconds[0]);
  for (std::size_t m = 0; m < kMethods.size(); ++m) {
    const double time = median(seconds[m]);
    const json line{{"what", "attention"},
                    {"regime", regime.name},
                    {"method", kMethods[m].name},
                    {"tokens", regime.forest.num_tokens()},
                    {"pairs", pairs},
                    {"seconds", time},
                    {"tokens_per_s", static_cast<double>(regime.forest.num_tokens()) / time},
                    {"attended_gflops_per_s", attended_flops(pairs) / time / 1e9},
                    {"efficiency", single / time},
                    {"bytes_of_busiest_rank", benches[m]->bytes()}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
}

engine::ModelConfig step_model() {
  engine::ModelConfig config;
  config.vocab_size = 4096;
  config.hidden_size = 256;
  config.intermediate_size = 768;
  config.num_hidden_layers = 4;
  config.num_attention_heads = kHeads.num_query_heads;
  config.num_key_value_heads = kHeads.num_kv_heads;
  config.head_dim = kHeads.head_dim;
  config.attention.qk_norm = true;
  config.tie_word_embeddings = true;
  return config;
}

// The groups of the third regime as documents: every completion token is scored.
std::vector<sp::Document> group_documents(int64_t tokens) {
  const int64_t completion = tokens / (8 * 20);
  std::vector<sp::Document> documents;
  for (int64_t d = 0; d < 128; ++d) {
    sp::Document document;
    for (int64_t i = 0; i < 5 * completion; ++i) {
      document.ids.push_back(i < 4 * completion ? (7 * i + d / 16) % 4096
                                                : (11 * i + 37 * d) % 4096);
    }
    for (int64_t i = 0; i < completion; ++i) {
      document.entries.add(4 * completion + i - 1, document.ids[4 * completion + i]);
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

// Forward, loss and backward of a decoder over the groups, shared and unshared, one rank.
Bench::Setup step_of(int64_t tokens, bool shared) {
  return [=](const sp::Mesh& mesh, const sp::ProcessGroups& comms) -> Bench::Body {
    auto decoder = std::make_shared<engine::Decoder>(step_model(), at::kFloat);
    decoder->init_random(1, 0.02);
    sp::CollatorOptions options{kHeads, 16384, {}};
    options.sequence.shared_prefix = shared;
    auto shards = std::make_shared<std::vector<sp::MicroBatch>>(
        sp::collate(group_documents(tokens), mesh, options));
    return [=] {
      for (const sp::MicroBatch& shard : *shards) {
        engine::SequenceParallelAttention attention(
            {{0,
              {sp::cpu_kernels()->prepare(shard.plan(0).plan, at::kFloat),
               comms.tensors(sp::axes::kUlysses), comms.tensors(sp::axes::kRing)}}});
        const at::Tensor hidden = decoder->forward(shard.ids_s, shard.positions_s, attention);
        const auto scores = decoder->score(hidden.index_select(0, shard.source_n), shard.target_n,
                                           at::ones({shard.num_entries()}));
        (scores.logprobs_n / static_cast<double>(128 * (tokens / 160))).sum().backward();
      }
    };
  };
}

void measure_step(int64_t tokens, int repetitions) {
  std::map<bool, double> time;
  Bench shared({1, 1, 1}, kThreads, step_of(tokens, true));
  Bench unshared({1, 1, 1}, kThreads, step_of(tokens, false));
  std::map<bool, std::vector<double>> seconds;
  shared.run();
  for (int r = 0; r < repetitions; ++r) {
    seconds[true].push_back(shared.run());
    seconds[false].push_back(unshared.run());
  }
  for (const bool is_shared : {true, false}) {
    const json line{{"what", "forward and backward of a decoder"},
                    {"regime", is_shared ? "groups, shared prompt" : "groups, unshared"},
                    {"method", "1 rank"},
                    {"tokens", is_shared ? tokens / 160 * 160 : tokens / 160 * 640},
                    {"seconds", median(seconds[is_shared])},
                    {"speedup_of_sharing", median(seconds[false]) / median(seconds[is_shared])}};
    std::printf("%s\n", line.dump().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // its map is not made for ranks as threads
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 8192;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 5;
  const std::string only = argc > 3 ? argv[3] : "";
  for (const Regime& regime : regimes(tokens)) {
    if (regime.name.find(only) != std::string::npos) {
      measure_attention(regime, repetitions);
    }
  }
  if (only.empty()) {
    measure_step(tokens, repetitions);
  }
  return 0;
}
