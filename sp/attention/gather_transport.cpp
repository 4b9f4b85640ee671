#include "sp/attention/gather_transport.h"

#include <ATen/ATen.h>

#include <utility>

namespace ringside::sp {
void GatherTransport::Exchange::wait() {
  for (const auto& transfer : transfers) {
    transfer->wait();
  }
  transfers.clear();
}

GatherTransport::GatherTransport(const at::Tensor& kv_S2kD, const PreparedPlan& prepared,
                                 Communicator& ring)
    : plan_(prepared.plan()),
      ring_(ring),
      own_kv_(kv_S2kD.contiguous()),
      order_(prepared.gather_order()) {}

// This rank's k and v heads of a chunk; a view when the chunk has all heads.
at::Tensor GatherTransport::own_heads(const at::Tensor& x_S2kD, const HeadChunk& chunk) const {
  const int64_t k = plan_.local_kv_heads();
  const int64_t c = chunk.kv_heads.size();
  if (c == k) {
    return x_S2kD;
  }
  return at::cat(
      {x_S2kD.narrow(1, chunk.kv_heads.begin, c), x_S2kD.narrow(1, k + chunk.kv_heads.begin, c)},
      1);
}

// Sends pieces[r] to ring rank r and receives recv_rows[r] rows from it. Posts all transfers before
// it waits for any.
GatherTransport::Exchange GatherTransport::start(const std::vector<at::Tensor>& pieces,
                                                 const std::vector<int64_t>& recv_rows,
                                                 const char* tag) {
  const int64_t size = plan_.ring_size();
  const int64_t me = plan_.ring_rank;
  Exchange exchange;
  exchange.received.resize(size);
  exchange.received[me] = pieces[me];
  for (int64_t shift = 1; shift < size; ++shift) {
    const int64_t to = (me + shift) % size;
    const int64_t from = (me - shift + size) % size;
    at::Tensor& receive = exchange.received[from];
    receive =
        at::empty({recv_rows[from], pieces[me].size(1), pieces[me].size(2)}, pieces[me].options());
    exchange.transfers.push_back(ring_.send_recv(pieces[to].contiguous(), to, receive, from, tag));
  }
  return exchange;
}

GatherTransport::Exchange GatherTransport::start_gather(int64_t ring_step) {
  const at::Tensor own = own_heads(own_kv_, chunk(ring_step));
  std::vector<at::Tensor> pieces;
  for (const auto& rows : plan_.gather.send_rows) {
    pieces.push_back(take_rows(own, rows));
  }
  return start(pieces, plan_.gather.recv_rows, "ring_kv");
}

at::Tensor GatherTransport::load(int64_t ring_step) {
  if (plan_.ring_size() == 1) {
    return own_heads(own_kv_, chunk(ring_step));
  }
  Exchange exchange = ring_step == 0 ? start_gather(0) : std::move(gathering_);
  if (ring_step + 1 < num_ring_steps()) {
    gathering_ = start_gather(ring_step + 1);
  }
  exchange.wait();
  const at::Tensor gathered = at::cat(exchange.received);
  return order_.source_m.defined() ? gathered.index_select(0, order_.source_m) : gathered;
}

void GatherTransport::add_gradient(int64_t ring_step, at::Tensor dkv_g2cD) {
  finish_gradient();
  if (plan_.ring_size() == 1 && num_ring_steps() == 1) {
    own_gradient_ = std::move(dkv_g2cD);
    return;
  }
  if (!own_gradient_.defined()) {
    own_gradient_ = at::zeros(own_kv_.sizes(), dkv_g2cD.options());
  }
  const at::Tensor ordered =
      order_.buffer_row_m.defined() ? dkv_g2cD.index_select(0, order_.buffer_row_m) : dkv_g2cD;
  const auto pieces = ordered.split_with_sizes(plan_.gather.recv_rows);
  std::vector<int64_t> recv_rows;
  for (const auto& rows : plan_.gather.send_rows) {
    recv_rows.push_back(total_size(rows));
  }
  returning_ = start(pieces, recv_rows, "ring_kv_grad");
  returning_step_ = ring_step;
}

void GatherTransport::finish_gradient() {
  if (returning_step_ < 0) {
    return;
  }
  returning_.wait();
  const HeadChunk& heads = chunk(std::exchange(returning_step_, -1));
  const int64_t c = heads.kv_heads.size();
  at::Tensor dk = own_gradient_.narrow(1, heads.kv_heads.begin, c);
  at::Tensor dv = own_gradient_.narrow(1, plan_.local_kv_heads() + heads.kv_heads.begin, c);
  for (std::size_t r = 0; r < returning_.received.size(); ++r) {
    add_rows(dk, plan_.gather.send_rows[r], returning_.received[r].narrow(1, 0, c));
    add_rows(dv, plan_.gather.send_rows[r], returning_.received[r].narrow(1, c, c));
  }
}

at::Tensor GatherTransport::finish() {
  finish_gradient();
  return own_gradient_;
}

}  // namespace ringside::sp
