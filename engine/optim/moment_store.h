// The optimizer's moments, on the device of the weights or in host memory.
//
// Source: ZeRO-Offload, Ren et al. 2021.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/device/device_event.h"
#include "engine/params/param_unit.h"

namespace ringside::engine {

// The moments of one unit, in the master dtype.
struct Moments {
  at::Tensor exp_avg;     // of the unit's flat() layout
  at::Tensor exp_avg_sq;  // one run of elements
};

// A step borrows the units' moments one after another, in order. Moments in host memory travel to
// the device and back on a stream of their own: those of the next unit while this one is updated.
// Thread safety: none.
class MomentStore {
 public:
  // Zeros. At least one unit; they must outlive the store. seconds: elements of each unit's
  // exp_avg_sq.
  MomentStore(const std::vector<ParamUnit*>& units, const std::vector<int64_t>& seconds);

  // The moments of unit u where its weights are.
  // Blocks: never; the current stream waits for them.
  Moments borrow(std::size_t u);
  // The update of unit u is launched; its moments may travel back. Call it once after borrow(u).
  // Blocks: never.
  void give_back(std::size_t u);

  // Where they are stored.
  // Blocks: until those that travel have arrived.
  const Moments& stored(std::size_t u) const;

 private:
  struct Staged {
    std::size_t unit;
    Moments moments;
    DeviceEvent arrived;
  };
  Staged bring(std::size_t u) const;

  const std::vector<ParamUnit*> units_;
  std::vector<Moments> stored_;
  std::optional<c10::Stream> stream_;  // where they travel; nullopt: they do not
  std::optional<Staged> next_;
  std::vector<std::optional<Moments>> borrowed_;
  DeviceEvent returned_;
};

}  // namespace ringside::engine
