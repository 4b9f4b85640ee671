// Integer tables that are collected on the host and go to a device in one copy.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ringside::sp {

// T: int64_t or int32_t, which is also the tables' dtype.
template <class T>
class IndexTables {
 public:
  // Returns the table's number, counted from 0.
  // Throws: c10::Error after upload().
  std::size_t add(std::span<const T> values);

  // Copies all tables. Call it once, after the last add().
  // Blocks: never; a device reads pinned memory on its current stream.
  void upload(at::Device device);

  // The table with this number, [values], on the device. After upload().
  at::Tensor table(std::size_t number) const;

 private:
  std::vector<T> values_;
  std::vector<int64_t> begins_{0};  // [tables + 1]
  at::Tensor block_;
};

}  // namespace ringside::sp
