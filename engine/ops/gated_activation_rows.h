// Functions of the gated activations' kernels for one pack of elements. rows.h has the letters.
#pragma once

#include "engine/ops/rows.h"

namespace ringside::engine::rows {

// 1 / (1 + e^-x).
template <class Real>
C10_HOST_DEVICE inline Real sigmoid(Real x) {
  return Real(1) / (Real(1) + std::exp(-x));
}

// Gradients of a gate and of what it multiplies.
template <class Real>
struct GateGradients {
  Real gate;
  Real up;
};

// Each activation has its value and its gradients for dy, and says whether columns of gate and up
// take turns; else they are [gate | up].

// silu(gate) * up. With s = sigmoid(gate): d gate = dy up s (1 + gate (1 - s)), d up = dy gate s.
struct SiluGate {
  static constexpr bool kTakeTurns = false;

  // What the activation makes of one gate and what it multiplies.
  template <class Real>
  C10_HOST_DEVICE Real value(Real gate, Real up) const {
    return gate * sigmoid(gate) * up;
  }

  // Gradients of both, for the gradient dy of the value.
  template <class Real>
  C10_HOST_DEVICE GateGradients<Real> gradients(Real dy, Real gate, Real up) const {
    const Real s = sigmoid(gate);
    return {dy * up * s * (Real(1) + gate * (Real(1) - s)), dy * gate * s};
  }
};

// gelu(gate) * up with gelu(x) = x (1 + t) / 2, t = tanh(sqrt(2 / pi) (x + 0.044715 x^3)).
struct GeluGate {
  static constexpr bool kTakeTurns = false;
  static constexpr double kScale = 0.79788456080286535588;  // sqrt(2 / pi)
  static constexpr double kCubic = 0.044715;

  // The t above.
  template <class Real>
  C10_HOST_DEVICE static Real tanh_of(Real gate) {
    return std::tanh(static_cast<Real>(kScale) *
                     (gate + static_cast<Real>(kCubic) * gate * gate * gate));
  }

  // What the activation makes of one gate and what it multiplies.
  template <class Real>
  C10_HOST_DEVICE Real value(Real gate, Real up) const {
    return Real(0.5) * gate * (Real(1) + tanh_of(gate)) * up;
  }

  // Gradients of both, for the gradient dy of the value.
  template <class Real>
  C10_HOST_DEVICE GateGradients<Real> gradients(Real dy, Real gate, Real up) const {
    const Real t = tanh_of(gate);
    const Real inner =
        static_cast<Real>(kScale) * (Real(1) + static_cast<Real>(3 * kCubic) * gate * gate);
    const Real slope = Real(0.5) * (Real(1) + t) + Real(0.5) * gate * (Real(1) - t * t) * inner;
    return {dy * up * slope, dy * Real(0.5) * gate * (Real(1) + t)};
  }
};

// (up + 1) gate sigmoid(alpha gate) with gate and up clamped.
struct ClampedGate {
  static constexpr bool kTakeTurns = true;
  double limit;
  double alpha;

  // The gate, at most `limit`.
  template <class Real>
  C10_HOST_DEVICE Real of_gate(Real gate) const {
    const Real most = static_cast<Real>(limit);
    return gate > most ? most : gate;
  }

  // `up`, within `limit` of 0.
  template <class Real>
  C10_HOST_DEVICE Real of_up(Real up) const {
    const Real most = static_cast<Real>(limit);
    return up > most ? most : up < -most ? -most : up;
  }

  // What the activation makes of one gate and what it multiplies.
  template <class Real>
  C10_HOST_DEVICE Real value(Real gate, Real up) const {
    const Real g = of_gate(gate);
    return (of_up(up) + Real(1)) * (g * sigmoid(static_cast<Real>(alpha) * g));
  }

  // Gradients of both, for the gradient dy of the value.
  template <class Real>
  C10_HOST_DEVICE GateGradients<Real> gradients(Real dy, Real gate, Real up) const {
    const Real g = of_gate(gate), a = static_cast<Real>(alpha), s = sigmoid(a * g);
    const Real most = static_cast<Real>(limit);
    const bool free_gate = gate <= most, free_up = up <= most && up >= -most;
    return {
        free_gate ? dy * (of_up(up) + Real(1)) * (s * (Real(1) + g * a * (Real(1) - s))) : Real(0),
        free_up ? dy * g * s : Real(0)};
  }
};

// Where a pack of results and its operands are. The operands are two packs: gates and what they
// multiply, or, where columns take turns, pairs of both.
struct GatePlace {
  int64_t first;   // element of the [s, 2F] tensor
  int64_t second;  // the second pack
  int64_t out;     // element of the [s, F] tensor
};

// The place of pack `item` of `width` elements, a divisor of F (f).
C10_HOST_DEVICE inline GatePlace gate_place(int64_t item, int64_t f, int width, bool take_turns) {
  if (take_turns) {
    return {2 * item * width, (2 * item + 1) * width, item * width};
  }
  const int64_t packs = f / width, row = item / packs, column = item % packs * width;
  const int64_t gate = row * 2 * f + column;
  return {gate, gate + f, row * f + column};
}

// Gate and up of element w of a pack of results, in its two packs of operands.
template <bool kTakeTurns, class T, int kWidth>
struct GatePair {
  Pack<T, kWidth>& first;
  Pack<T, kWidth>& second;

  // Element i of both packs as one.
  C10_HOST_DEVICE T& element(int i) const { return i < kWidth ? first.x[i] : second.x[i - kWidth]; }
  // The gate of result w.
  C10_HOST_DEVICE T& gate(int w) const { return kTakeTurns ? element(2 * w) : first.x[w]; }
  // What it multiplies.
  C10_HOST_DEVICE T& up(int w) const { return kTakeTurns ? element(2 * w + 1) : second.x[w]; }
};

// The activation of one pack.
template <class T, int kWidth, class Activation>
C10_HOST_DEVICE inline void gated_pack(const Activation& activation, const T* gate_up, T* out,
                                       int64_t f, int64_t item) {
  const GatePlace place = gate_place(item, f, kWidth, Activation::kTakeTurns);
  Pack<T, kWidth> first = load<kWidth>(gate_up + place.first);
  Pack<T, kWidth> second = load<kWidth>(gate_up + place.second);
  const GatePair<Activation::kTakeTurns, T, kWidth> pair{first, second};
  Pack<T, kWidth> y;
  for (int w = 0; w < kWidth; ++w) {
    y.x[w] = static_cast<T>(
        activation.value(static_cast<Wide<T>>(pair.gate(w)), static_cast<Wide<T>>(pair.up(w))));
  }
  store<kWidth>(out + place.out, y);
}

// Its gradient.
template <class T, int kWidth, class Activation>
C10_HOST_DEVICE inline void gated_grad_pack(const Activation& activation, const T* dy,
                                            const T* gate_up, T* d_gate_up, int64_t f,
                                            int64_t item) {
  const GatePlace place = gate_place(item, f, kWidth, Activation::kTakeTurns);
  const Pack<T, kWidth> d = load<kWidth>(dy + place.out);
  Pack<T, kWidth> first = load<kWidth>(gate_up + place.first);
  Pack<T, kWidth> second = load<kWidth>(gate_up + place.second);
  const GatePair<Activation::kTakeTurns, T, kWidth> pair{first, second};
  for (int w = 0; w < kWidth; ++w) {
    const GateGradients<Wide<T>> gradients =
        activation.gradients(static_cast<Wide<T>>(d.x[w]), static_cast<Wide<T>>(pair.gate(w)),
                             static_cast<Wide<T>>(pair.up(w)));
    pair.gate(w) = static_cast<T>(gradients.gate);
    pair.up(w) = static_cast<T>(gradients.up);
  }
  store<kWidth>(d_gate_up + place.first, first);
  store<kWidth>(d_gate_up + place.second, second);
}

}  // namespace ringside::engine::rows
