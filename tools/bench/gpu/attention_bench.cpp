// TFLOP/s of attention forward and backward on one GPU: the executor at P = 1, and the plain flash
// kernel in one call over the same documents; for whole documents also cuDNN's kernels. If
// documents share prefixes, the plain kernel computes and stores every prefix again. Both rates use
// the FLOPs of the shared form, so the ratio of the rates is the ratio of the times. Writes a JSON
// array to stdout. With --digests it measures nothing and writes one line a scenario: a hash of the
// bits of the executor's results, which must be the same on every run with deterministic
// algorithms. Exits with 0 without a GPU, and measures nothing. Shapes: T = tokens, H = query
// heads, K = KV heads, D = head dim.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sp/attention/cuda/kernels.h"
#include "sp/attention/executor.h"

using namespace ringside;

namespace {

constexpr sp::HeadShape kHeads{32, 8, 128};
constexpr double kScale = 0.08838834764831845;  // 1 / sqrt(128)
constexpr int kWarmUps = 2;
constexpr int kRuns = 5;

struct Scenario {
  std::string name;
  sp::SegmentForest forest;
  std::vector<int64_t> documents;  // whole documents, shared tokens counted for each
};

Scenario documents(const std::string& name, int64_t tokens, int64_t count) {
  std::vector<int64_t> lengths(count, tokens / count);
  return {name, sp::SegmentForest::of_documents(lengths), lengths};
}

// Groups of documents of which three quarters are the group's prompt; `tokens` counts each document
// whole.
Scenario groups(const std::string& name, int64_t tokens, int64_t num_groups, int64_t group_size,
                bool shared) {
  const int64_t document = tokens / (num_groups * group_size), prompt = document * 3 / 4;
  std::vector<int64_t> lengths(num_groups * group_size, document);
  if (!shared) {
    return {name, sp::SegmentForest::of_documents(lengths), lengths};
  }
  std::vector<sp::Segment> segments;
  for (int64_t g = 0; g < num_groups; ++g) {
    const auto parent = static_cast<int64_t>(segments.size());
    segments.push_back({-1, prompt});
    segments.insert(segments.end(), group_size, sp::Segment{parent, document - prompt});
  }
  return {name, sp::SegmentForest(segments), lengths};
}

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const int64_t thousands : {8, 32, 128}) {
    const int64_t tokens = thousands * 1024;
    const std::string size = std::to_string(thousands) + "k";
    all.push_back(documents("one document, " + size, tokens, 1));
    if (thousands == 128) {
      all.push_back(documents("16 documents, " + size, tokens, 16));
      all.push_back(documents("32 documents, " + size, tokens, 32));
    }
    all.push_back(documents("64 documents, " + size, tokens, 64));
    all.push_back(groups("8 groups of 16, shared prefix, " + size, tokens, 8, 16, /*shared=*/true));
    all.push_back(groups("8 groups of 16, unshared, " + size, tokens, 8, 16, /*shared=*/false));
  }
  return all;
}

// Seconds of one run, the mean of kRuns after warm-ups.
double seconds(const std::function<void()>& run) {
  for (int i = 0; i < kWarmUps; ++i) {
    run();
  }
  at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
  begin.record();
  for (int i = 0; i < kRuns; ++i) {
    run();
  }
  end.record();
  end.synchronize();
  return begin.elapsed_time(end) / 1e3 / kRuns;
}

struct Times {
  double forward = 0;
  double backward = 0;
  double both() const { return forward + backward; }
};

struct Inputs {
  at::Tensor q_THD, kv_T2KD, dout_THD;
};

Inputs make_inputs(int64_t tokens) {
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA);
  const auto random = [&](int64_t heads) {
    return at::randn({tokens, heads, kHeads.head_dim}, options);
  };
  return {random(kHeads.num_query_heads), random(2 * kHeads.num_kv_heads),
          random(kHeads.num_query_heads)};
}

Times time_executor(const Scenario& scenario, std::shared_ptr<const sp::AttentionPlan> plan) {
  const Inputs in = make_inputs(scenario.forest.num_tokens());
  const auto prepared = sp::cuda_kernels()->prepare(std::move(plan), in.q_THD.options());
  const auto alone = sp::make_single_rank_communicator();
  const auto forward = [&] {
    return sp::run_forward(in.q_THD, in.kv_T2KD, *prepared, *alone, kScale);
  };
  const auto result = forward();
  const sp::QuerySide side{in.dout_THD, in.q_THD, result.out.to(at::kBFloat16), result.lse};
  return {seconds([&] { forward(); }),
          seconds([&] { sp::run_backward(side, in.kv_T2KD, *prepared, *alone, kScale); })};
}

// One call over whole documents, by the flash kernel or by cuDNN.
Times time_call(const Scenario& scenario, int64_t least_cudnn_rows) {
  std::vector<sp::Range> rows;
  int64_t tokens = 0;
  for (const int64_t n : scenario.documents) {
    rows.push_back({tokens, tokens + n});
    tokens += n;
  }
  const Inputs in = make_inputs(tokens);
  const auto call = sp::make_varlen_call(rows, rows, {-1, 0}, at::kCUDA);
  const at::Tensor k = in.kv_T2KD.narrow(1, 0, kHeads.num_kv_heads);
  const at::Tensor v = in.kv_T2KD.narrow(1, kHeads.num_kv_heads, kHeads.num_kv_heads);
  const auto ops = sp::cuda_varlen_group_ops(least_cudnn_rows);
  const auto [out, lse] = ops->attend(in.q_THD, k, v, call, kScale);
  const at::Tensor result = out, lse_HT = lse;
  return {seconds([&] { ops->attend(in.q_THD, k, v, call, kScale); }), seconds([&] {
            ops->attend_backward(in.dout_THD, in.q_THD, k, v, result, lse_HT, call, kScale);
          })};
}

// Times of cuDNN's kernels, which take a document at a time: of no use for many short ones.
std::string cudnn_fields(const Scenario& scenario) {
  if (scenario.documents.size() > 64 || at::cuda::getCurrentDeviceProperties()->major < 9) {
    return "";
  }
  const Times times = time_call(scenario, /*least_cudnn_rows=*/1);
  char text[100];
  std::snprintf(text, sizeof(text), ", \"cudnn_forward_ms\": %.4f, \"cudnn_backward_ms\": %.4f",
                times.forward * 1e3, times.backward * 1e3);
  return text;
}

std::size_t hash_of_bits(const at::Tensor& tensor) {
  const at::Tensor host = tensor.contiguous().cpu();
  return std::hash<std::string_view>()(
      {static_cast<const char*>(host.const_data_ptr()), host.nbytes()});
}

void print_digest(const Scenario& scenario) {
  auto plan = std::make_shared<const sp::AttentionPlan>(
      sp::plan_attention(sp::SequenceLayout(scenario.forest, 1, 1), kHeads, 0));
  const Inputs in = make_inputs(scenario.forest.num_tokens());
  const auto prepared = sp::cuda_kernels()->prepare(std::move(plan), in.q_THD.options());
  const auto alone = sp::make_single_rank_communicator();
  const auto result = sp::run_forward(in.q_THD, in.kv_T2KD, *prepared, *alone, kScale);
  const sp::QuerySide side{in.dout_THD, in.q_THD, result.out.to(at::kBFloat16), result.lse};
  const auto gradients = sp::run_backward(side, in.kv_T2KD, *prepared, *alone, kScale);
  std::printf("%s: out %zx lse %zx dq %zx dkv %zx\n", scenario.name.c_str(),
              hash_of_bits(result.out), hash_of_bits(result.lse), hash_of_bits(gradients.dq_ShD),
              hash_of_bits(gradients.dkv_S2kD));
}

void print_digests() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  for (const Scenario& scenario : scenarios()) {
    print_digest(scenario);
  }
}

void report(const Scenario& scenario, bool first) {
  const auto plan = std::make_shared<const sp::AttentionPlan>(
      sp::plan_attention(sp::SequenceLayout(scenario.forest, 1, 1), kHeads, 0));
  // Of the forward pass: two matrix products; the backward pass has five.
  const auto flops = static_cast<double>(plan->forward_flops());
  const Times executor = time_executor(scenario, plan);
  const Times flash = time_call(scenario, sp::kNeverCudnn);
  const auto rate = [&](const Times& t) { return 3.5 * flops / t.both() / 1e12; };
  std::printf(
      "%s  {\"scenario\": \"%s\", \"tokens\": %lld, \"executor_forward_ms\": %.4f, "
      "\"executor_backward_ms\": %.4f, "
      "\"flash_forward_ms\": %.4f, \"flash_backward_ms\": %.4f, \"executor_tflops\": %.1f, "
      "\"flash_tflops\": %.1f, "
      "\"ratio\": %.4f%s}",
      first ? "" : ",\n", scenario.name.c_str(),
      static_cast<long long>(scenario.forest.num_tokens()), executor.forward * 1e3,
      executor.backward * 1e3, flash.forward * 1e3, flash.backward * 1e3, rate(executor),
      rate(flash), flash.both() / executor.both(), cudnn_fields(scenario).c_str());
  std::fflush(stdout);
}

void measure() {
  std::printf("[\n");
  bool first = true;
  for (const Scenario& scenario : scenarios()) {
    report(scenario, first);
    first = false;
  }
  std::printf("\n]\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (!at::cuda::is_available()) {
    std::fprintf(stderr, "attention_bench: no GPU, nothing was measured\n");
    return 0;
  }
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  if (argc > 1 && std::string_view(argv[1]) == "--digests") {
    print_digests();
  } else {
    measure();
  }
}
