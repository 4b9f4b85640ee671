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

// This rank's counts followed by those that arrive: [X + P x], the latter by source, then expert.
at::Tensor exchange_counts(const at::Tensor& counts_X, int64_t mine, sp::Communicator& ranks) {
  const int64_t size = ranks.size();
  std::vector<int64_t> sent;
  for (int64_t rank = 0; rank < size; ++rank) {
    sent.push_back(sp::even_part(counts_X.numel(), size, rank).size());
  }
  const at::Tensor received =
      ranks.all_to_all(counts_X, sent, std::vector<int64_t>(size, mine), kCountsTag);
  return at::cat({counts_X, received});
}

}  // namespace

ExpertExchange::ExpertExchange(std::shared_ptr<sp::Communicator> ranks, const at::Tensor& counts_X,
                               sp::KeptResults* kept) {
  auto route = std::make_shared<Route>();
  const int64_t experts = counts_X.numel(), size = ranks->size();
  const int64_t mine = sp::even_part(experts, size, ranks->rank()).size();
  TORCH_CHECK(size <= experts, "experts: ", experts, " experts for ", size, " ranks");
  const at::Tensor counts = sp::compute_once(
      kept, [&] { return sp::KeptResults::Tensors{exchange_counts(counts_X, mine, *ranks)}; })[0];
  const at::Tensor on_host = counts.cpu();
  const int64_t* sent = on_host.const_data_ptr<int64_t>();
  const int64_t* received = sent + experts;
  route->sent_counts.assign(sent, sent + experts);
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
  const at::Tensor ends = counts.narrow(0, experts, size * mine).cumsum(0);
  const at::Tensor place = at::arange(rows, counts.options());
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
