#include "sp/recurrent/state_passing.h"

#include <ATen/ATen.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sp/mesh/saved_context.h"

namespace ringside::sp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Elements sent to and received from each ring rank.
struct RingMessage {
  std::vector<int64_t> send, receive;  // [R]
  std::shared_ptr<Communicator> ring;
  std::string tag;

  RingMessage reversed() const { return {receive, send, ring, tag + "_grad"}; }
};

// Collective over: the ring. Nothing is sent between ranks that have nothing for each other.
at::Tensor send_and_receive(const at::Tensor& send, const RingMessage& message) {
  const at::Tensor packed = send.contiguous();
  at::Tensor received =
      at::empty({std::accumulate(message.receive.begin(), message.receive.end(), int64_t{0})},
                send.options());
  const auto to_rank = packed.split_with_sizes(message.send);
  auto from_rank = received.split_with_sizes(message.receive);
  const int64_t size = message.ring->size(), me = message.ring->rank();
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int64_t shift = 1; shift < size; ++shift) {
    const int64_t to = (me + shift) % size, from = (me - shift + size) % size;
    transfers.push_back(
        message.ring->send_recv(to_rank[to], to, from_rank[from], from, message.tag));
  }
  for (const auto& transfer : transfers) {
    transfer->wait();
  }
  return received;
}

struct RingExchange : torch::autograd::Function<RingExchange> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& send,
                            const RingMessage& message) {
    hold(ctx, message);
    return send_and_receive(send, message);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {send_and_receive(grads[0], held<RingMessage>(ctx).reversed()), at::Tensor()};
  }
};

// The maps that a state's path is made of: this rank's, then the received ones.
struct Maps {
  std::vector<at::Tensor> added, transition;  // undefined transition: a piece that starts from zero
};

RingMessage map_message(const StatePlan& plan, const std::shared_ptr<Communicator>& ring) {
  RingMessage message{{}, {}, ring, "state_maps"};
  for (int64_t r = 0; r < plan.ring_size(); ++r) {
    int64_t send = 0, receive = 0;
    for (const TravellingMap& map : plan.send_maps[r]) {
      send += plan.map_elements(map.from_zero);
    }
    for (const TravellingMap& map : plan.recv_maps[r]) {
      receive += plan.map_elements(map.from_zero);
    }
    message.send.push_back(send);
    message.receive.push_back(receive);
  }
  return message;
}

at::Tensor pack_maps(const at::Tensor& added, const at::Tensor& transition, const StatePlan& plan) {
  // Connected to the maps, so that a rank that only receives takes part in the backward.
  std::vector<at::Tensor> parts{added.narrow(0, 0, 0).reshape({0})};
  for (const auto& maps : plan.send_maps) {
    for (const TravellingMap& map : maps) {
      parts.push_back(added[map.map].reshape({-1}));
      if (!map.from_zero) {
        parts.push_back(transition[map.map].reshape({-1}));
      }
    }
  }
  return at::cat(parts);
}

void unpack_maps(const at::Tensor& received, const StatePlan& plan, Maps& maps) {
  const int64_t h = plan.own_value_heads(), k = plan.shape.key_dim, v = plan.shape.value_dim;
  int64_t at = 0;
  const auto next = [&](int64_t width) {
    const at::Tensor part = received.narrow(0, at, h * k * width).view({h, k, width});
    at += h * k * width;
    return part;
  };
  for (const auto& from_rank : plan.recv_maps) {
    for (const TravellingMap& map : from_rank) {
      maps.added.push_back(next(v));
      maps.transition.push_back(map.from_zero ? at::Tensor() : next(k));
    }
  }
}

// The end state of each entry of the plan's path.
std::vector<at::Tensor> states_along(const StatePlan& plan, const Maps& maps) {
  std::vector<at::Tensor> ends;
  for (const StatePlan::PathStep& step : plan.path) {
    const at::Tensor& added = maps.added[step.source];
    ends.push_back(step.after < 0
                       ? added
                       : at::baddbmm(added, maps.transition[step.source], ends[step.after]));
  }
  return ends;
}

}  // namespace

std::vector<int64_t> sent_rows(const StatePlan& plan) {
  std::vector<int64_t> rows;
  for (const std::vector<int64_t>& to_rank : plan.send_rows) {
    rows.insert(rows.end(), to_rank.begin(), to_rank.end());
  }
  return rows;
}

at::Tensor rows_of_other_ranks(const at::Tensor& x_Sc, const StateContext& context) {
  const StatePlan& plan = *context.plan;
  const int64_t c = x_Sc.size(1);
  TORCH_CHECK(x_Sc.size(0) == plan.share_rows, "state passing: ", x_Sc.size(0),
              " rows, the plan has ", plan.share_rows);
  if (!plan.rows_travel) {
    return {};
  }
  RingMessage message{{}, {}, context.ring, "state_halo"};
  for (int64_t r = 0; r < plan.ring_size(); ++r) {
    message.send.push_back(static_cast<int64_t>(plan.send_rows[r].size()) * c);
    message.receive.push_back(plan.recv_rows[r] * c);
  }
  return RingExchange::apply(x_Sc.index_select(0, context.sent_rows).view({-1}), message)
      .view({-1, c});
}

at::Tensor start_states(const at::Tensor& added_mhKV, const at::Tensor& transition_mhKK,
                        const StateContext& context) {
  const StatePlan& plan = *context.plan;
  if (!plan.maps_travel) {
    return {};
  }
  const int64_t m = static_cast<int64_t>(plan.mapped_runs.size()), h = plan.own_value_heads();
  const int64_t k = plan.shape.key_dim, v = plan.shape.value_dim;
  TORCH_CHECK(added_mhKV.sizes() == at::IntArrayRef({m, h, k, v}) &&
                  transition_mhKK.sizes() == at::IntArrayRef({m, h, k, k}),
              "state passing: maps ", added_mhKV.sizes(), " and ", transition_mhKK.sizes(), " of ",
              m, " runs with ", h, " heads");
  const at::Tensor received = RingExchange::apply(pack_maps(added_mhKV, transition_mhKK, plan),
                                                  map_message(plan, context.ring));
  Maps maps{added_mhKV.unbind(), transition_mhKK.unbind()};
  unpack_maps(received, plan, maps);
  const std::vector<at::Tensor> ends = states_along(plan, maps);
  std::vector<at::Tensor> starts;
  for (const StatePlan::Run& run : plan.runs) {
    if (run.after < 0) {
      starts.push_back(run.start < 0 ? added_mhKV.new_zeros({1, h, k, v})
                                     : ends[plan.starts[run.start]].unsqueeze(0));
    }
  }
  if (received.numel() == 0) {
    // Connected to the result, so that a rank that receives nothing takes part in the backward.
    starts.push_back(received.view({0, h, k, v}));
  }
  return at::cat(starts);
}

}  // namespace ringside::sp
