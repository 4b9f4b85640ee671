#include "engine/nn/expert_exchange.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <utility>

#include "sp/layout/range.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Route = ExpertExchange::Route;

constexpr const char* kCountsTag = "expert_counts";
constexpr const char* kRowsTag = "expert_rows";

// Holder of a route, because an IValue stores intrusive pointers only.
struct RouteHolder : torch::CustomClassHolder {
  explicit RouteHolder(std::shared_ptr<const Route> r) : route(std::move(r)) {}
  std::shared_ptr<const Route> route;
};

using Holder = c10::intrusive_ptr<RouteHolder>;

const Route& route_of(AutogradContext& ctx) {
  const auto capsule = ctx.saved_data["route"].toCapsule();
  return *static_cast<const RouteHolder&>(*capsule).route;
}

at::Tensor exchange(const at::Tensor& rows, const std::vector<int64_t>& sent,
                    const std::vector<int64_t>& received, sp::Communicator& ranks) {
  const int64_t width = rows.size(1);
  const auto elements = [width](std::vector<int64_t> counts) {
    for (int64_t& count : counts) {
      count *= width;
    }
    return counts;
  };
  return ranks
      .all_to_all(rows.contiguous().view({-1}), elements(sent), elements(received), kRowsTag)
      .view({-1, width});
}

at::Tensor send_to_experts(const at::Tensor& rows_RE, const Route& route) {
  return exchange(rows_RE, route.sent, route.received, *route.ranks)
      .index_select(0, route.by_expert);
}

at::Tensor send_to_sources(const at::Tensor& rows_TE, const Route& route) {
  return exchange(rows_TE.index_select(0, route.by_source), route.received, route.sent,
                  *route.ranks);
}

struct ToExperts : torch::autograd::Function<ToExperts> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows_RE, const Holder& holder) {
    ctx->saved_data["route"] = c10::IValue::make_capsule(holder);
    return send_to_experts(rows_RE, *holder->route);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {send_to_sources(grads[0], route_of(*ctx)), at::Tensor()};
  }
};

struct ToSources : torch::autograd::Function<ToSources> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows_TE, const Holder& holder) {
    ctx->saved_data["route"] = c10::IValue::make_capsule(holder);
    return send_to_sources(rows_TE, *holder->route);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {send_to_experts(grads[0], route_of(*ctx)), at::Tensor()};
  }
};

}  // namespace

at::Tensor exchange_row_counts(const at::Tensor& counts_NX, sp::Communicator& ranks) {
  const int64_t layers = counts_NX.size(0), experts = counts_NX.size(1), size = ranks.size();
  TORCH_CHECK(size <= experts, "experts: ", experts, " experts for ", size, " ranks");
  const int64_t mine = sp::even_part(experts, size, ranks.rank()).size();
  std::vector<int64_t> sent;
  std::vector<at::Tensor> by_rank;
  for (int64_t rank = 0; rank < size; ++rank) {
    const sp::Range theirs = sp::even_part(experts, size, rank);
    sent.push_back(layers * theirs.size());
    by_rank.push_back(counts_NX.narrow(1, theirs.begin, theirs.size()).reshape({-1}));
  }
  const at::Tensor received = ranks.all_to_all(
      at::cat(by_rank), sent, std::vector<int64_t>(size, layers * mine), kCountsTag);
  const at::Tensor received_NPx =
      received.view({size, layers, mine}).transpose(0, 1).reshape({layers, size * mine});
  return at::cat({counts_NX, received_NPx}, 1);
}

ExpertExchange::ExpertExchange(std::shared_ptr<sp::Communicator> ranks, int64_t experts,
                               const RowCounts& counts) {
  auto route = std::make_shared<Route>();
  const int64_t size = ranks->size();
  const int64_t mine = sp::even_part(experts, size, ranks->rank()).size();
  TORCH_CHECK(size <= experts, "experts: ", experts, " experts for ", size, " ranks");
  TORCH_CHECK(counts.on_host.numel() == experts + size * mine &&
                  counts.on_device.numel() == counts.on_host.numel(),
              "experts: row counts ", counts.on_host.sizes(), " and ", counts.on_device.sizes(),
              " for ", experts, " experts, of which rank ", ranks->rank(), " of ", size, " has ",
              mine);
  const at::Tensor on_host = counts.on_host.contiguous();
  const int64_t* sent = on_host.const_data_ptr<int64_t>();
  const int64_t* received = sent + experts;
  route->counts.assign(mine, 0);
  for (int64_t rank = 0; rank < size; ++rank) {
    const sp::Range theirs = sp::even_part(experts, size, rank);
    route->sent.push_back(std::accumulate(sent + theirs.begin, sent + theirs.end, int64_t{0}));
    const int64_t* from = received + rank * mine;
    route->received.push_back(std::accumulate(from, from + mine, int64_t{0}));
    for (int64_t x = 0; x < mine; ++x) {
      route->counts[x] += from[x];
    }
  }
  // Rows arrive by source, then expert: run i is of expert i mod x.
  const int64_t rows = std::accumulate(route->counts.begin(), route->counts.end(), int64_t{0});
  const at::Tensor ends = counts.on_device.narrow(0, experts, size * mine).cumsum(0);
  const at::Tensor place = at::arange(rows, counts.on_device.options());
  const at::Tensor expert =
      at::searchsorted(ends, place, /*out_int32=*/false, /*right=*/true).remainder(mine);
  route->by_expert = at::argsort(expert, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  route->by_source = at::zeros_like(route->by_expert).scatter_(0, route->by_expert, place);
  route->ranks = std::move(ranks);
  route_ = std::move(route);
}

at::Tensor ExpertExchange::to_experts(const at::Tensor& rows_RE) const {
  return ToExperts::apply(rows_RE, c10::make_intrusive<RouteHolder>(route_));
}

at::Tensor ExpertExchange::to_sources(const at::Tensor& rows_TE) const {
  return ToSources::apply(rows_TE, c10::make_intrusive<RouteHolder>(route_));
}

}  // namespace ringside::engine
