// Index tables that go to a device together, in one copy that blocks nobody.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sp/attention/index_tables.h"

namespace ringside::engine {

class TableUpload {
 public:
  // upload() sets `to`, which must not move before.
  void add(const std::vector<int64_t>& values, at::Tensor& to) {
    places_.emplace_back(&to, tables_.add(values));
  }

  // Call it once, after the last add().
  // Blocks: never.
  void upload(c10::Device device) {
    tables_.upload(device);
    for (const auto& [to, number] : places_) {
      *to = tables_.table(number);
    }
  }

 private:
  sp::IndexTables<int64_t> tables_;
  std::vector<std::pair<at::Tensor*, std::size_t>> places_;
};

}  // namespace ringside::engine
