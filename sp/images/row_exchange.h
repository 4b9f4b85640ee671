// Exchange of image rows: from the rank that encodes an image to the ranks that have its tokens, in
// one all-to-all whose sizes the plan knows.
//
// Shapes: r = rows that this rank encodes, i = rows of images among its tokens, E = width.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/plan/image_plan.h"

namespace ringside::sp {

// A plan with its indices on the device. It serves any number of exchanges of a micro-batch.
class RowExchange {
 public:
  // Blocks: never; the current stream waits for the indices.
  // Throws: c10::Error when the plan is for another number of ranks, or another rank, than comm's.
  RowExchange(std::shared_ptr<const ImagePlan> plan, std::shared_ptr<Communicator> comm,
              at::Device device);

  // int64 [i], the local token of each row that exchange_rows() returns.
  const at::Tensor& place_i() const { return place_i_; }

  // Without autograd. rows_rE -> rows_iE; the adjoint d_iE -> d_rE adds up what the tokens of a row
  // give it in the order of ranks and tokens, in fp32 for narrower floats. It counts its bytes
  // under tag + "_grad".
  // Collective over, blocks, throws: as exchange_rows().
  at::Tensor forward(const at::Tensor& rows_rE, const std::string& tag) const;
  at::Tensor adjoint(const at::Tensor& gradient_iE, const std::string& tag) const;

 private:
  std::shared_ptr<const ImagePlan> plan_;
  std::shared_ptr<Communicator> comm_;
  at::Tensor send_;
  at::Tensor place_i_;
  // The k-th sum adds the gradients `from` to the rows `to`, which are distinct: so no order within
  // it counts.
  struct Sum {
    at::Tensor to, from;
  };
  std::vector<Sum> sums_;
};

// Rows of this rank's image tokens, from the rows of the images that it encodes. The gradient is
// the exact adjoint; differentiable once. A rank without images takes part with 0 rows; if any
// rank's rows require a gradient, those of all ranks do, and every rank uses the result in its
// loss, also one of 0 rows.
// Collective over: the exchange's communicator, forward and backward.
// Blocks: until the rows are there; on CUDA only the current stream waits.
// Throws: c10::Error, before anything is sent, unless rows_rE has two dims and the plan's rows.
at::Tensor exchange_rows(const at::Tensor& rows_rE,
                         const std::shared_ptr<const RowExchange>& exchange,
                         const std::string& tag = "image_rows");

}  // namespace ringside::sp
