// The cases, the reference layer and the logging communicator of the tests of sp/heads and
// sp/functional.
// Shapes: S = all tokens, s = a rank's, E = hidden size, H/K = query/KV heads, D = head dim.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <limits>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sp/heads/head_split.h"
#include "sp/mesh/communicator.h"

namespace ringside::test {

struct Case {
  std::vector<int64_t> lengths;  // tokens of each rank
  int64_t query_heads;
  int64_t kv_heads;

  int64_t ranks() const { return static_cast<int64_t>(lengths.size()); }
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  std::string text() const {
    std::ostringstream out;
    out << "lengths " << at::IntArrayRef(lengths) << ", heads " << query_heads << "/" << kv_heads;
    return out.str();
  }
};

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& lengths : std::vector<std::vector<int64_t>>{
           {4, 4}, {5, 0}, {3, 4}, {2, 2, 2}, {4, 0, 3}, {2, 2, 2, 2}, {0, 5, 1, 3}}) {
    for (const auto& [query_heads, kv_heads] : {std::pair{8, 8}, {8, 2}, {6, 2}, {5, 1}}) {
      cases.push_back({lengths, query_heads, kv_heads});
    }
  }
  cases.push_back({{0, 0, 0}, 6, 2});  // nothing anywhere
  cases.push_back({{2, 1, 3}, 2, 1});  // a rank without a head
  return cases;
}

// Heads of one rank, and the KV head of each of its query heads, as an index into its own.
struct RankHeads {
  sp::Range query_heads;
  sp::Range kv_heads;
  std::vector<int64_t> kv_head_of;
};

inline RankHeads heads_of(int64_t query_heads, int64_t kv_heads, int64_t ranks, int64_t rank) {
  const sp::HeadSplit split = sp::split_heads({query_heads, kv_heads, 1}, ranks);
  return {split.query_heads_of[rank], split.kv_heads_of[rank], split.kv_head_of(rank)};
}

inline at::Tensor rows_of_rank(const at::Tensor& x, int64_t dim,
                               const std::vector<int64_t>& lengths, int64_t rank) {
  return x.narrow(dim, std::accumulate(lengths.begin(), lengths.begin() + rank, int64_t{0}),
                  lengths[rank]);
}

// Causal attention of one document, KV head kv_head_of[h] for query head h.
inline at::Tensor attend(const at::Tensor& q_SHD, const at::Tensor& k_SKD, const at::Tensor& v_SKD,
                         const std::vector<int64_t>& kv_head_of) {
  if (q_SHD.numel() == 0) {
    return q_SHD + 0 * (k_SKD.sum() + v_SKD.sum());  // still part of the graph
  }
  const at::Tensor index = at::tensor(kv_head_of, at::kLong);
  const at::Tensor future = at::ones({q_SHD.size(0), q_SHD.size(0)}, at::kBool).triu(1);
  const at::Tensor scores = at::einsum("shd,thd->hst", {q_SHD, k_SKD.index_select(1, index)});
  const at::Tensor probs =
      (0.6 * scores).masked_fill(future, -std::numeric_limits<double>::infinity()).softmax(-1);
  return at::einsum("hst,thd->shd", {probs, v_SKD.index_select(1, index)});
}

// An attention layer and a gradient of its output.
struct Layer {
  at::Tensor x, wq, bq, wk, bk, wv, bv, wo, bo, dy;

  std::vector<at::Tensor> parameters() const { return {wq, bq, wk, bk, wv, bv, wo, bo}; }

  // Leaves of a rank's own: its rows of x, all parameters.
  Layer shard(const Case& c, int64_t rank) const {
    const auto leaf = [](const at::Tensor& t) { return t.clone().requires_grad_(); };
    return {leaf(rows_of_rank(x, 0, c.lengths, rank)),
            leaf(wq),
            leaf(bq),
            leaf(wk),
            leaf(bk),
            leaf(wv),
            leaf(bv),
            leaf(wo),
            leaf(bo),
            dy};
  }
};

inline Layer random_layer(const Case& c, int64_t hidden, int64_t head_dim) {
  at::manual_seed(11);
  const int64_t q = c.query_heads * head_dim, k = c.kv_heads * head_dim;
  const auto r = [](std::vector<int64_t> shape) { return at::randn(shape, at::kDouble); };
  return {r({c.tokens(), hidden}),
          r({q, hidden}),
          r({q}),
          r({k, hidden}),
          r({k}),
          r({k, hidden}),
          r({k}),
          r({hidden, q}),
          r({hidden}),
          r({c.tokens(), hidden})};
}

struct StepResult {
  at::Tensor y, dx;
  std::vector<at::Tensor> parameter_grads;
};

// The same layer in one process.
inline StepResult dense_step(const Layer& layer, const Case& c) {
  const Layer l = layer.shard({{c.tokens()}, c.query_heads, c.kv_heads}, 0);
  const int64_t d = l.wq.size(0) / c.query_heads;
  std::vector<int64_t> kv_head_of;
  for (int64_t h = 0; h < c.query_heads; ++h) {
    kv_head_of.push_back(h / (c.query_heads / c.kv_heads));
  }
  const auto heads = [&](const at::Tensor& w, const at::Tensor& b) {
    return at::linear(l.x, w, b).unflatten(1, {-1, d});
  };
  const at::Tensor out =
      attend(heads(l.wq, l.bq), heads(l.wk, l.bk), heads(l.wv, l.bv), kv_head_of);
  const at::Tensor y = at::linear(out.flatten(1), l.wo, l.bo);
  y.backward(l.dy);
  StepResult result{y.detach(), l.x.grad(), {}};
  for (const at::Tensor& parameter : l.parameters()) {
    result.parameter_grads.push_back(parameter.grad());
  }
  return result;
}

// Writes "mm" into a log for every matrix product that this thread computes while it lives.
class ProductLog {
 public:
  explicit ProductLog(std::string& log) {
    log_of_thread() = &log;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
  }
  ProductLog(const ProductLog&) = delete;
  ProductLog& operator=(const ProductLog&) = delete;
  ~ProductLog() { at::removeCallback(handle_); }

 private:
  static std::string*& log_of_thread() {
    thread_local std::string* log = nullptr;
    return log;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    const std::string name = function.name();
    if (name == "aten::mm" || name == "aten::addmm" || name == "aten::addmm_") {
      *log_of_thread() += "mm ";
    }
    return nullptr;
  }

  at::CallbackHandle handle_;
};

// Passes everything on and notes when transfers start and are waited for.
class LoggingCommunicator final : public sp::Communicator {
 public:
  explicit LoggingCommunicator(std::shared_ptr<sp::Communicator> inner)
      : inner_(std::move(inner)) {}

  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }
  std::string& log() { return log_; }
  std::string take() { return std::exchange(log_, {}); }

 protected:
  std::unique_ptr<sp::Transfer> do_start_all_reduce(at::Tensor& tensor, Reduction) override {
    return logged(inner_->start_all_reduce_sum(tensor, "inner"));
  }
  std::unique_ptr<sp::Transfer> do_start_all_to_all(
      at::Tensor& receive, at::Tensor& send, const std::vector<int64_t>& receive_counts,
      const std::vector<int64_t>& send_counts) override {
    return logged(inner_->start_all_to_all(send, send_counts, receive, receive_counts, "inner"));
  }
  std::unique_ptr<sp::Transfer> do_start_all_gather(at::Tensor& gathered,
                                                    const at::Tensor& tensor) override {
    return logged(inner_->start_all_gather(tensor, gathered, "inner"));
  }
  void do_broadcast(at::Tensor& tensor, int64_t root) override {
    inner_->broadcast(tensor, root, "inner");
  }
  std::unique_ptr<sp::Transfer> do_send_recv(const at::Tensor& send, int64_t to,
                                             at::Tensor& receive, int64_t from) override {
    return logged(inner_->send_recv(send, to, receive, from, "inner"));
  }
  std::vector<std::unique_ptr<sp::Transfer>> do_start_transfers(
      std::span<const sp::PointToPoint> transfers) override {
    auto started = inner_->start_transfers(transfers, "inner");
    for (auto& transfer : started) {
      transfer = logged(std::move(transfer));
    }
    return started;
  }

 private:
  struct Logged final : sp::Transfer {
    Logged(std::unique_ptr<sp::Transfer> t, int64_t n, std::string& l)
        : transfer(std::move(t)), number(n), log(l) {}
    void wait() override {
      transfer->wait();
      log += "wait" + std::to_string(number) + " ";
    }
    std::unique_ptr<sp::Transfer> transfer;
    int64_t number;
    std::string& log;
  };

  std::unique_ptr<sp::Transfer> logged(std::unique_ptr<sp::Transfer> transfer) {
    log_ += "start" + std::to_string(started_) + " ";
    return std::make_unique<Logged>(std::move(transfer), started_++, log_);
  }

  std::shared_ptr<sp::Communicator> inner_;
  int64_t started_ = 0;
  std::string log_;
};

}  // namespace ringside::test
