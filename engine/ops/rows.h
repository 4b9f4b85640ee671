// Row functions of the CUDA kernels: what one lane of a group of lanes does with one row. They
// hold all index arithmetic.
//
// A row with a sum takes two phases: every lane sums its elements, the kernel adds the lanes' sums,
// every lane writes its elements. Both phases give a lane the same elements, so a lane reads back
// only what it wrote itself.
//
// Shapes: T = dtype of the tensors, Acc = dtype of sums, kWidth = elements of one load; a row's
// size is a multiple of kWidth and its pointers are aligned to kWidth elements.
#pragma once

#include <c10/macros/Macros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace ringside::engine::rows {

// One of `count` lanes that share a row.
struct Lane {
  int64_t index;
  int64_t count;
};

// The elements of one load.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T x[kWidth];
};

// The kWidth elements from `from` on, in one load.
template <int kWidth, class T>
C10_HOST_DEVICE inline Pack<T, kWidth> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(from);
}

// Writes a pack to `to` in one store.
template <int kWidth, class T>
C10_HOST_DEVICE inline void store(T* to, const Pack<T, kWidth>& pack) {
  *reinterpret_cast<Pack<T, kWidth>*>(to) = pack;
}

// Calls f with the first element of each of the lane's packs in a row of `size` elements.
template <int kWidth, class F>
C10_HOST_DEVICE inline void for_each_pack(int64_t size, Lane lane, F f) {
  for (int64_t i = lane.index * kWidth; i < size; i += lane.count * kWidth) {
    f(i);
  }
}

// The dtype in which products of T are computed.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace ringside::engine::rows
