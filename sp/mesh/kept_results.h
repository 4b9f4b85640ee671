// Results of collectives and of attention, kept from a forward to its recomputation in the
// backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace ringside::sp {

// A segment that runs twice calls once() at the same places in the same order in both runs. The
// first run computes and keeps. The second takes what was kept, so it computes and sends none of it
// again. Between the runs the owner holds the tensors: release() hands them out, restore() brings
// them back.
// Thread safety: none.
class KeptResults {
 public:
  using Tensors = std::vector<at::Tensor>;

  // First run: compute(), whose tensors are kept too. Second run: the same tensors, which this
  // object then no longer holds. Tensors that compute() returns may be filled until release().
  // Throws: c10::Error when the second run calls once() more often than the first.
  template <class Compute>
  Tensors once(Compute&& compute) {
    if (!second_run_) {
      Tensors results = std::forward<Compute>(compute)();
      sizes_.push_back(results.size());
      tensors_.insert(tensors_.end(), results.begin(), results.end());
      return results;
    }
    TORCH_CHECK(next_call_ < sizes_.size(), "kept results: the second run asks for result ",
                next_call_, ", the first run kept ", sizes_.size());
    Tensors results;
    for (std::size_t i = 0; i < sizes_[next_call_]; ++i) {
      results.push_back(std::exchange(tensors_.at(next_tensor_++), at::Tensor()));
    }
    ++next_call_;
    return results;
  }

  // Ends the first run. Returns all that it kept; this object holds nothing more.
  Tensors release() { return std::exchange(tensors_, {}); }
  // Begins the second run with the tensors of release(), or copies of them, in the same order.
  void restore(Tensors tensors) {
    tensors_ = std::move(tensors);
    second_run_ = true;
    next_call_ = next_tensor_ = 0;
  }

 private:
  std::vector<std::size_t> sizes_;  // tensors of each call of the first run
  Tensors tensors_;
  bool second_run_ = false;
  std::size_t next_call_ = 0, next_tensor_ = 0;
};

// kept->once(compute), or compute() alone where nothing is kept.
template <class Compute>
KeptResults::Tensors compute_once(KeptResults* kept, Compute&& compute) {
  return kept != nullptr ? kept->once(std::forward<Compute>(compute))
                         : std::forward<Compute>(compute)();
}

}  // namespace ringside::sp
