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

// Elements per rank: rows of the row owner x heads of the head owner x elements of R.
std::vector<int64_t> counts(const HeadExchange& exchange, const std::vector<int64_t>& rest,
                            const std::function<std::pair<int64_t, int64_t>(int64_t)>& owners) {
  std::vector<int64_t> result;
  for (std::size_t p = 0; p < exchange.rows_of.size(); ++p) {
    const auto [row_owner, head_owner] = owners(static_cast<int64_t>(p));
    result.push_back(exchange.rows_of[row_owner] * width_of(exchange, head_owner) *
                     c10::multiply_integers(rest));
  }
  return result;
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

StartedExchange start(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                      const std::vector<int64_t>& recv_counts, std::vector<int64_t> rest,
                      Communicator& comm, const char* tag) {
  StartedExchange started{at::empty({sum(recv_counts)}, send.options()), std::move(rest), nullptr};
  started.transfer = comm.start_all_to_all(send, send_counts, started.receive, recv_counts, tag);
  return started;
}

// Joins [s, heads of rank p, R] of every rank p to [s, H, R].
at::Tensor join(const std::vector<at::Tensor>& parts, const std::vector<Range>& heads_of) {
  bool shared = false;
  for (std::size_t p = 1; p < heads_of.size(); ++p) {
    shared = shared || heads_of[p].begin < heads_of[p - 1].end;
  }
  if (!shared) {
    return at::cat(parts, /*dim=*/1);
  }
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
  const int64_t me = comm.rank(), s = exchange.rows_of[me];
  auto rest =
      checked_rest(xs_sHR, exchange, s, [](const auto& heads_of) { return heads_of.back().end; });
  const auto send_counts = counts(exchange, rest, [&](int64_t p) { return std::pair{me, p}; });
  const auto recv_counts = counts(exchange, rest, [&](int64_t p) { return std::pair{p, me}; });
  const at::Tensor send = at::empty({sum(send_counts)}, xs_sHR.front().options());
  const auto messages = send.split_with_sizes(send_counts);
  for (std::size_t p = 0; p < messages.size(); ++p) {
    const at::Tensor message =
        messages[p].view(shape_of(s, width_of(exchange, static_cast<int64_t>(p)), rest));
    int64_t begin = 0;
    for (std::size_t i = 0; i < xs_sHR.size(); ++i) {
      const Range heads = exchange.heads_of[i][p];
      message.narrow(1, begin, heads.size()).copy_(xs_sHR[i].narrow(1, heads.begin, heads.size()));
      begin += heads.size();
    }
  }
  return start(send, send_counts, recv_counts, std::move(rest), comm, tag);
}

at::Tensor finish_joined_to_heads(StartedExchange started, const HeadExchange& exchange,
                                  const Communicator& comm) {
  started.transfer->wait();
  return started.receive.view(
      shape_of(sum(exchange.rows_of), width_of(exchange, comm.rank()), started.rest));
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

StartedExchange start_joined_to_sequence(const at::Tensor& joined_ShR, const HeadExchange& exchange,
                                         Communicator& comm, const char* tag) {
  const int64_t me = comm.rank();
  const auto rest = joined_ShR.sizes().slice(2).vec();
  const auto expected = shape_of(sum(exchange.rows_of), width_of(exchange, me), rest);
  TORCH_CHECK(joined_ShR.sizes() == expected,
              "head exchange: joined tensor has [tokens, heads, ...] ", joined_ShR.sizes(),
              ", expected ", expected);
  const auto send_counts = counts(exchange, rest, [&](int64_t p) { return std::pair{p, me}; });
  const auto recv_counts = counts(exchange, rest, [&](int64_t p) { return std::pair{me, p}; });
  return start(joined_ShR.contiguous().view({-1}), send_counts, recv_counts, rest, comm, tag);
}

StartedExchange start_to_sequence(const std::vector<at::Tensor>& xs_ShR,
                                  const HeadExchange& exchange, Communicator& comm,
                                  const char* tag) {
  const int64_t me = comm.rank();
  checked_rest(xs_ShR, exchange, sum(exchange.rows_of),
               [me](const auto& heads_of) { return heads_of[me].size(); });
  return start_joined_to_sequence(xs_ShR.size() == 1 ? xs_ShR.front() : at::cat(xs_ShR, /*dim=*/1),
                                  exchange, comm, tag);
}

std::vector<at::Tensor> finish_to_sequence(StartedExchange started, const HeadExchange& exchange,
                                           const Communicator& comm) {
  started.transfer->wait();
  const int64_t me = comm.rank();
  const auto recv_counts = counts(exchange, started.rest, [&](int64_t p) {
    return std::pair{me, p};
  });
  const auto messages = started.receive.split_with_sizes(recv_counts);
  std::vector<std::vector<at::Tensor>> parts(exchange.heads_of.size());
  for (std::size_t p = 0; p < messages.size(); ++p) {
    const at::Tensor message = messages[p].view(
        shape_of(exchange.rows_of[me], width_of(exchange, static_cast<int64_t>(p)), started.rest));
    int64_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].push_back(message.narrow(1, begin, exchange.heads_of[i][p].size()));
      begin += exchange.heads_of[i][p].size();
    }
  }
  std::vector<at::Tensor> xs_sHR;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    xs_sHR.push_back(join(parts[i], exchange.heads_of[i]));
  }
  return xs_sHR;
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
