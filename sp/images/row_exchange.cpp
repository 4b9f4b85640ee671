#include "sp/images/row_exchange.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <utility>

#include "sp/attention/index_tables.h"
#include "sp/mesh/saved_context.h"

namespace ringside::sp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct SumRows {
  std::vector<int64_t> to, from;
};

// The k-th sum has the k-th copy of every row that is sent more than k times.
std::vector<SumRows> sums_of(const ImagePlan& plan) {
  std::vector<SumRows> sums;
  std::vector<std::size_t> copies(plan.encoded_rows);
  for (std::size_t i = 0; i < plan.send_rows.size(); ++i) {
    const std::size_t copy = copies[plan.send_rows[i]]++;
    if (copy == sums.size()) {
      sums.emplace_back();
    }
    sums[copy].to.push_back(plan.send_rows[i]);
    sums[copy].from.push_back(static_cast<int64_t>(i));
  }
  return sums;
}

std::vector<int64_t> times(std::vector<int64_t> counts, int64_t width) {
  for (int64_t& count : counts) {
    count *= width;
  }
  return counts;
}

struct Call {
  std::shared_ptr<const RowExchange> exchange;
  std::string tag;
};

class ExchangeRows : public torch::autograd::Function<ExchangeRows> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& rows_rE, const Call& call) {
    hold(ctx, call);
    return call.exchange->forward(rows_rE, call.tag);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Call call = held<Call>(ctx);
    return {call.exchange->adjoint(grads[0], call.tag), Variable()};
  }
};

}  // namespace

RowExchange::RowExchange(std::shared_ptr<const ImagePlan> plan, std::shared_ptr<Communicator> comm,
                         at::Device device)
    : plan_(std::move(plan)), comm_(std::move(comm)) {
  TORCH_CHECK(plan_->ranks() == comm_->size() && plan_->rank == comm_->rank(),
              "row exchange: a plan of rank ", plan_->rank, " of ", plan_->ranks(),
              " in a group where it is ", comm_->rank(), " of ", comm_->size());
  IndexTables<int64_t> tables;
  const std::size_t send = tables.add(plan_->send_rows), place = tables.add(plan_->place_rows);
  std::vector<std::pair<std::size_t, std::size_t>> numbers;
  for (const SumRows& sum : sums_of(*plan_)) {
    const std::size_t to = tables.add(sum.to);
    numbers.emplace_back(to, tables.add(sum.from));
  }
  tables.upload(device);
  send_ = tables.table(send);
  place_i_ = tables.table(place);
  for (const auto& [to, from] : numbers) {
    sums_.push_back({tables.table(to), tables.table(from)});
  }
}

at::Tensor RowExchange::forward(const at::Tensor& rows_rE, const std::string& tag) const {
  TORCH_CHECK(rows_rE.dim() == 2 && rows_rE.size(0) == plan_->encoded_rows,
              "row exchange: image rows of shape ", rows_rE.sizes(), ", the plan has ",
              plan_->encoded_rows, " rows on this rank");
  const int64_t width = rows_rE.size(1);
  const at::Tensor sent = rows_rE.index_select(0, send_).view({-1});
  return comm_
      ->all_to_all(sent, times(plan_->rows_to[plan_->rank], width),
                   times(plan_->received_rows(), width), tag)
      .view({place_i_.size(0), width});
}

at::Tensor RowExchange::adjoint(const at::Tensor& gradient_iE, const std::string& tag) const {
  TORCH_CHECK(gradient_iE.dim() == 2 && gradient_iE.size(0) == place_i_.size(0),
              "row exchange: gradient of shape ", gradient_iE.sizes(), ", the plan has ",
              place_i_.size(0), " rows on this rank");
  const int64_t width = gradient_iE.size(1);
  const at::Tensor parts =
      comm_
          ->all_to_all(gradient_iE.contiguous().view({-1}), times(plan_->received_rows(), width),
                       times(plan_->rows_to[plan_->rank], width), tag + "_grad")
          .view({send_.size(0), width});
  const auto dtype = parts.scalar_type();
  const at::Tensor sum_rE =
      at::zeros({plan_->encoded_rows, width}, parts.options().dtype(at::toOpMathType(dtype)));
  for (const Sum& sum : sums_) {
    sum_rE.index_add_(0, sum.to, parts.index_select(0, sum.from).to(sum_rE.scalar_type()));
  }
  return sum_rE.to(dtype);
}

at::Tensor exchange_rows(const at::Tensor& rows_rE,
                         const std::shared_ptr<const RowExchange>& exchange,
                         const std::string& tag) {
  return ExchangeRows::apply(rows_rE, Call{exchange, tag});
}

}  // namespace ringside::sp
