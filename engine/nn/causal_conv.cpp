#include "engine/nn/causal_conv.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/device/table_upload.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType sums_of_conv(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct ConvHolder final : torch::CustomClassHolder {
  explicit ConvHolder(std::shared_ptr<const ConvTables> t) : tables(std::move(t)) {}
  std::shared_ptr<const ConvTables> tables;
};

// The runs with the rows before them, in the dtype of sums.
at::Tensor padded_rows(const at::Tensor& x, const at::Tensor& other, const ConvTables& tables) {
  const auto dtype = sums_of_conv(x);
  at::Tensor padded = at::zeros({tables.padded_rows(), x.size(1)}, x.options().dtype(dtype));
  padded.index_copy_(0, tables.padded_row(), x.to(dtype));
  if (tables.copied_to().defined()) {
    const at::Tensor from =
        other.defined() ? at::cat({padded.index_select(0, tables.padded_row()), other.to(dtype)})
                        : padded.index_select(0, tables.padded_row());
    padded.index_copy_(0, tables.copied_to(), from.index_select(0, tables.copied_from()));
  }
  return padded;
}

// Before SiLU, for all padded rows but the first T - 1.
at::Tensor convolve(const at::Tensor& padded, const at::Tensor& weight_Tc) {
  const int64_t taps = weight_Tc.size(0), n = padded.size(0) - taps + 1;
  at::Tensor y = padded.narrow(0, 0, n) * weight_Tc[0];
  for (int64_t j = 1; j < taps; ++j) {
    y.addcmul_(padded.narrow(0, j, n), weight_Tc[j]);
  }
  return y;
}

struct CausalConvSilu : torch::autograd::Function<CausalConvSilu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::optional<at::Tensor>& other, const at::Tensor& weight_cT,
                            const c10::intrusive_ptr<ConvHolder>& holder) {
    const ConvTables& tables = *holder->tables;
    const at::Tensor rows = other.value_or(at::Tensor());
    ctx->save_for_backward({x, rows, weight_cT});
    ctx->saved_data["tables"] = c10::IValue::make_capsule(holder);
    const at::Tensor padded = padded_rows(x, rows, tables);
    const at::Tensor weight_Tc = weight_cT.to(padded.scalar_type()).t().contiguous();
    const at::Tensor y = convolve(padded, weight_Tc);
    const at::Tensor place = tables.padded_row() - (tables.taps() - 1);
    return at::silu(y.index_select(0, place)).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &other = saved[1], &weight_cT = saved[2];
    const auto holder =
        c10::static_intrusive_pointer_cast<ConvHolder>(ctx->saved_data["tables"].toCapsule());
    const ConvTables& tables = *holder->tables;
    const int64_t taps = tables.taps();
    const at::Tensor padded = padded_rows(x, other, tables);
    const at::Tensor weight_Tc = weight_cT.to(padded.scalar_type()).t().contiguous();
    const at::Tensor y = convolve(padded, weight_Tc);
    const at::Tensor place = tables.padded_row() - (taps - 1);
    at::Tensor d_y = at::zeros_like(y);
    d_y.index_copy_(0, place,
                    at::silu_backward(grads[0].to(y.scalar_type()), y.index_select(0, place)));
    at::Tensor d_padded = at::zeros_like(padded);
    std::vector<at::Tensor> d_taps;
    for (int64_t j = 0; j < taps; ++j) {
      d_padded.narrow(0, j, y.size(0)).addcmul_(d_y, weight_Tc[j]);
      d_taps.push_back((padded.narrow(0, j, y.size(0)) * d_y).sum(0));
    }
    return input_gradients(d_padded, x, other, at::stack(d_taps, 1).to(weight_cT.scalar_type()),
                           tables);
  }

 private:
  static variable_list input_gradients(const at::Tensor& d_padded, const at::Tensor& x,
                                       const at::Tensor& other, const at::Tensor& d_weight,
                                       const ConvTables& tables) {
    at::Tensor d_x = d_padded.index_select(0, tables.padded_row());
    at::Tensor d_other;
    if (other.defined()) {
      d_x = at::cat({d_x, at::zeros({other.size(0), d_x.size(1)}, d_x.options())});
    }
    if (tables.copied_to().defined()) {
      d_x.index_add_(0, tables.copied_from(), d_padded.index_select(0, tables.copied_to()));
    }
    if (other.defined()) {
      d_other = d_x.narrow(0, x.size(0), other.size(0)).to(other.scalar_type());
    }
    return {d_x.narrow(0, 0, x.size(0)).to(x.scalar_type()), d_other, d_weight, at::Tensor()};
  }
};

}  // namespace

ConvTables::ConvTables(const std::vector<sp::Range>& runs, const std::vector<int64_t>& before,
                       int64_t taps, int64_t rows, c10::Device device)
    : taps_(taps), rows_(rows) {
  const int64_t halo = taps - 1;
  TORCH_CHECK(taps >= 1 && before.size() == runs.size() * halo && sp::total_size(runs) == rows,
              "convolution: ", runs.size(), " runs of ", sp::total_size(runs), " rows with ",
              before.size(), " rows before them, for ", rows, " rows and ", taps, " taps");
  std::vector<int64_t> place(rows), to, from;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (int64_t i = 0; i < halo; ++i, ++padded_rows_) {
      if (const int64_t row = before[r * halo + i]; row >= 0) {
        to.push_back(padded_rows_);
        from.push_back(row);
      }
    }
    for (int64_t row = runs[r].begin; row < runs[r].end; ++row) {
      place.at(row) = padded_rows_++;
    }
  }
  padded_rows_ = std::max(padded_rows_, halo);
  TableUpload tables;
  tables.add(place, padded_row_);
  if (!to.empty()) {
    tables.add(to, copied_to_);
    tables.add(from, copied_from_);
  }
  tables.upload(device);
}

at::Tensor causal_conv_silu(const at::Tensor& x_Sc, const at::Tensor& other_nc,
                            const at::Tensor& weight_cT,
                            const std::shared_ptr<const ConvTables>& tables) {
  TORCH_CHECK(x_Sc.dim() == 2 && x_Sc.size(0) == tables->rows() &&
                  weight_cT.sizes() == at::IntArrayRef({x_Sc.size(1), tables->taps()}),
              "convolution: rows ", x_Sc.sizes(), " and weight ", weight_cT.sizes(), " for ",
              tables->rows(), " rows and ", tables->taps(), " taps");
  return CausalConvSilu::apply(x_Sc,
                               other_nc.defined() ? std::make_optional(other_nc) : std::nullopt,
                               weight_cT, c10::make_intrusive<ConvHolder>(tables));
}

at::Tensor causal_conv_silu_step(const at::Tensor& x_Bc, const at::Tensor& weight_cT,
                                 at::Tensor& state_BTc) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = at::cat({state_BTc, x_Bc.unsqueeze(1).to(state_BTc.scalar_type())}, 1);
  state_BTc = rows.narrow(1, 1, rows.size(1) - 1).contiguous();
  const auto dtype = sums_of_conv(x_Bc);
  return at::silu((rows.to(dtype) * weight_cT.t().to(dtype)).sum(1)).to(x_Bc.scalar_type());
}

}  // namespace ringside::engine
