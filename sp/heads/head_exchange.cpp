#include "sp/heads/head_exchange.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <functional>
#include <numeric>
#include <utility>

namespace ringside::sp {
namespace {

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// Number of heads of all tensors that a rank gets.
int64_t width_of(const HeadExchange& exchange, int64_t rank) {
  int64_t width = 0;
  for (const auto& heads_of : exchange.heads_of) {
    width += heads_of[rank].size();
  }
  return width;
}

std::vector<int64_t> shape_of(int64_t rows, int64_t heads, const std::vector<int64_t>& rest) {
  std::vector<int64_t> shape{rows, heads};
  shape.insert(shape.end(), rest.begin(), rest.end());
  return shape;
}

// R, the dims after the first two. Checks that every tensor has `rows` rows and the heads of the
// exchange.
std::vector<int64_t> checked_rest(const std::vector<at::Tensor>& xs, const HeadExchange& exchange,
                                  int64_t rows,
                                  const std::function<int64_t(const std::vector<Range>&)>& heads) {
  TORCH_CHECK(xs.size() == exchange.heads_of.size(), "head exchange: ", xs.size(), " tensors for ",
              exchange.heads_of.size());
  const std::vector<int64_t> rest = xs.front().sizes().slice(2).vec();
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const auto expected = shape_of(rows, heads(exchange.heads_of[i]), rest);
    TORCH_CHECK(xs[i].sizes() == expected, "head exchange: tensor ", i,
                " has [tokens, heads, ...] ", xs[i].sizes(), ", expected ", expected);
    TORCH_CHECK(xs[i].scalar_type() == xs.front().scalar_type(), "head exchange: dtypes ",
                xs[i].scalar_type(), " and ", xs.front().scalar_type(), " in one message");
  }
  return rest;
}

bool has_shared_heads(const std::vector<Range>& heads_of) {
  for (std::size_t p = 1; p < heads_of.size(); ++p) {
    if (heads_of[p].begin < heads_of[p - 1].end) {
      return true;
    }
  }
  return false;
}

// The tensor, if the elements of its rows have no gaps; otherwise a copy.
at::Tensor with_dense_rows(const at::Tensor& x) {
  return x.size(0) == 0 || x.select(0, 0).is_contiguous() ? x : x.contiguous();
}

// Sums [s, heads of rank p, R] of every rank p into [s, H, R], in rank order.
at::Tensor sum_of(const std::vector<at::Tensor>& parts, const std::vector<Range>& heads_of) {
  const auto dtype = parts.front().scalar_type();
  std::vector<int64_t> shape = parts.front().sizes().vec();
  shape[1] = heads_of.back().end;
  const at::Tensor joined =
      at::zeros(shape, parts.front().options().dtype(at::toOpMathType(dtype)));
  for (std::size_t p = 0; p < parts.size(); ++p) {
    joined.narrow(1, heads_of[p].begin, heads_of[p].size()).add_(parts[p]);
  }
  return joined.to(dtype);
}

}  // namespace

std::vector<Range> ranges_of(const std::vector<int64_t>& sizes) {
  std::vector<Range> ranges;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

StartedExchange start_to_heads(const std::vector<at::Tensor>& xs_sHR, const HeadExchange& exchange,
                               Communicator& comm, const char* tag) {
  const int64_t me = comm.rank();
  const auto rest = checked_rest(xs_sHR, exchange, exchange.rows_of[me],
                                 [](const auto& heads_of) { return heads_of.back().end; });
  const at::Tensor joined_ShR = at::empty(
      shape_of(sum(exchange.rows_of), width_of(exchange, me), rest), xs_sHR.front().options());
  std::vector<RowParts> send(exchange.rows_of.size()), receive(exchange.rows_of.size());
  for (const at::Tensor& x : xs_sHR) {
    const at::Tensor rows = with_dense_rows(x);
    const auto& heads_of = exchange.heads_of[&x - xs_sHR.data()];
    for (std::size_t p = 0; p < send.size(); ++p) {
      send[p].push_back(rows.narrow(1, heads_of[p].begin, heads_of[p].size()));
    }
  }
  int64_t begin = 0;
  for (std::size_t p = 0; p < receive.size(); ++p) {
    receive[p].push_back(joined_ShR.narrow(0, begin, exchange.rows_of[p]));
    begin += exchange.rows_of[p];
  }
  auto transfer = comm.start_row_exchange(send, receive, tag);
  return {{joined_ShR}, {}, std::move(transfer)};
}

at::Tensor finish_joined_to_heads(StartedExchange started, const HeadExchange& /*exchange*/,
                                  const Communicator& /*comm*/) {
  started.transfer->wait();
  return started.results.front();
}

std::vector<at::Tensor> finish_to_heads(StartedExchange started, const HeadExchange& exchange,
                                        const Communicator& comm) {
  const at::Tensor joined = finish_joined_to_heads(std::move(started), exchange, comm);
  std::vector<at::Tensor> xs_ShR;
  int64_t begin = 0;
  for (const auto& heads_of : exchange.heads_of) {
    const int64_t heads = heads_of[comm.rank()].size();
    xs_ShR.push_back(joined.narrow(1, begin, heads));
    begin += heads;
  }
  return xs_ShR;
}

namespace {

// xs: tensors whose heads, one after another, are those of this rank.
StartedExchange start_rows_to_sequence(const std::vector<at::Tensor>& xs_ShR,
                                       const std::vector<int64_t>& rest,
                                       const HeadExchange& exchange, Communicator& comm,
                                       const char* tag) {
  const std::size_t ranks = exchange.rows_of.size();
  const int64_t s = exchange.rows_of[comm.rank()];
  std::vector<RowParts> send(ranks), receive(ranks);
  for (const at::Tensor& x : xs_ShR) {
    const at::Tensor rows = with_dense_rows(x);
    int64_t begin = 0;
    for (std::size_t p = 0; p < ranks; ++p) {
      send[p].push_back(rows.narrow(0, begin, exchange.rows_of[p]));
      begin += exchange.rows_of[p];
    }
  }
  StartedExchange started;
  const auto options = xs_ShR.front().options();
  for (const auto& heads_of : exchange.heads_of) {
    const bool shared = has_shared_heads(heads_of);
    at::Tensor& x_sHR = started.results.emplace_back();
    std::vector<at::Tensor>& contributions = started.contributions.emplace_back();
    if (!shared) {
      x_sHR = at::empty(shape_of(s, heads_of.back().end, rest), options);
    }
    for (std::size_t p = 0; p < ranks; ++p) {
      if (shared) {
        contributions.push_back(at::empty(shape_of(s, heads_of[p].size(), rest), options));
      }
      receive[p].push_back(shared ? contributions.back()
                                  : x_sHR.narrow(1, heads_of[p].begin, heads_of[p].size()));
    }
  }
  started.transfer = comm.start_row_exchange(send, receive, tag);
  return started;
}

}  // namespace

StartedExchange start_joined_to_sequence(const at::Tensor& joined_ShR, const HeadExchange& exchange,
                                         Communicator& comm, const char* tag) {
  const auto rest = joined_ShR.sizes().slice(2).vec();
  const auto expected = shape_of(sum(exchange.rows_of), width_of(exchange, comm.rank()), rest);
  TORCH_CHECK(joined_ShR.sizes() == expected,
              "head exchange: joined tensor has [tokens, heads, ...] ", joined_ShR.sizes(),
              ", expected ", expected);
  return start_rows_to_sequence({joined_ShR}, rest, exchange, comm, tag);
}

StartedExchange start_to_sequence(const std::vector<at::Tensor>& xs_ShR,
                                  const HeadExchange& exchange, Communicator& comm,
                                  const char* tag) {
  const int64_t me = comm.rank();
  const auto rest = checked_rest(xs_ShR, exchange, sum(exchange.rows_of),
                                 [me](const auto& heads_of) { return heads_of[me].size(); });
  return start_rows_to_sequence(xs_ShR, rest, exchange, comm, tag);
}

std::vector<at::Tensor> finish_to_sequence(StartedExchange started, const HeadExchange& exchange,
                                           const Communicator& /*comm*/) {
  started.transfer->wait();
  for (std::size_t i = 0; i < started.results.size(); ++i) {
    if (!started.contributions[i].empty()) {
      started.results[i] = sum_of(started.contributions[i], exchange.heads_of[i]);
    }
  }
  return std::move(started.results);
}

at::Tensor to_heads(const at::Tensor& x_sHR, const HeadExchange& exchange, Communicator& comm,
                    const char* tag) {
  if (comm.size() == 1) {
    return x_sHR;
  }
  return finish_joined_to_heads(start_to_heads({x_sHR}, exchange, comm, tag), exchange, comm);
}

at::Tensor to_sequence(const at::Tensor& x_ShR, const HeadExchange& exchange, Communicator& comm,
                       const char* tag) {
  if (comm.size() == 1) {
    return x_ShR;
  }
  return finish_to_sequence(start_to_sequence({x_ShR}, exchange, comm, tag), exchange, comm)[0];
}

AttentionExchange attention_exchange(const HeadSplit& split, const std::vector<int64_t>& rows_of) {
  return {{rows_of, {split.query_heads_of}}, {rows_of, {split.kv_heads_of, split.kv_heads_of}}};
}

std::pair<at::Tensor, at::Tensor> qkv_to_heads(const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                                               const at::Tensor& v_sKD,
                                               const AttentionExchange& exchange,
                                               Communicator& comm) {
  if (comm.size() == 1) {
    return {q_sHD, at::cat({k_sKD, v_sKD}, /*dim=*/1)};
  }
  auto query = start_to_heads({q_sHD}, exchange.query, comm, "ulysses_query");
  auto kv = start_to_heads({k_sKD, v_sKD}, exchange.kv, comm, "ulysses_kv");
  at::Tensor q_ShD = finish_joined_to_heads(std::move(query), exchange.query, comm);
  return {std::move(q_ShD), finish_joined_to_heads(std::move(kv), exchange.kv, comm)};
}

std::array<at::Tensor, 3> qkv_gradients_to_sequence(const at::Tensor& dq_ShD,
                                                    const at::Tensor& dkv_S2kD,
                                                    const AttentionExchange& exchange,
                                                    Communicator& comm) {
  if (comm.size() == 1) {
    const int64_t k = dkv_S2kD.size(1) / 2;
    return {dq_ShD, dkv_S2kD.narrow(1, 0, k), dkv_S2kD.narrow(1, k, k)};
  }
  auto query = start_joined_to_sequence(dq_ShD, exchange.query, comm, "ulysses_output");
  auto kv = start_joined_to_sequence(dkv_S2kD, exchange.kv, comm, "ulysses_kv_grad");
  auto dq = finish_to_sequence(std::move(query), exchange.query, comm);
  auto dkv = finish_to_sequence(std::move(kv), exchange.kv, comm);
  return {std::move(dq[0]), std::move(dkv[0]), std::move(dkv[1])};
}

}  // namespace ringside::sp
