#include "engine/images/resize.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ringside::engine {
namespace {

// What one output element is made of: `count` input elements from `first` on, weighted.
struct Taps {
  int64_t first = 0;
  int64_t count = 0;
};

// The taps of all output elements of one direction, weights as integers of 2^-precision.
struct Weights {
  std::vector<Taps> taps;
  std::vector<int32_t> values;  // [output size, most taps]
  int64_t most = 0;             // taps of an element
  int precision = 0;
};

double cubic(double x) {
  constexpr double a = -0.5;  // Pillow's, which LibTorch takes where it antialiases
  x = std::abs(x);
  if (x < 1.0) {
    return ((a + 2) * x - (a + 3)) * x * x + 1;
  }
  return x < 2.0 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0.0;
}

// Bits for the fraction, so that the largest weight still fits into 16 bits.
int precision_of(double largest) {
  int precision = 0;
  while (precision < 22 && static_cast<int>(0.5 + largest * (1 << (precision + 1))) < (1 << 15)) {
    ++precision;
  }
  return precision;
}

Weights weights_of(int64_t input, int64_t output) {
  const double scale = static_cast<double>(input) / static_cast<double>(output);
  const double support = scale >= 1.0 ? 2.0 * scale : 2.0;
  const double inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
  Weights out;
  out.most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  out.taps.resize(static_cast<std::size_t>(output));
  std::vector<double> weights(static_cast<std::size_t>(output * out.most));
  double largest = 0.0;
  for (int64_t i = 0; i < output; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const auto first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t end = std::min(static_cast<int64_t>(center + support + 0.5), input);
    const int64_t count = std::clamp<int64_t>(end - first, 0, out.most);
    double* row = weights.data() + i * out.most;
    double total = 0.0;
    for (int64_t j = 0; j < count; ++j) {
      row[j] = cubic((static_cast<double>(j + first) - center + 0.5) * inverse);
      total += row[j];
    }
    for (int64_t j = 0; j < count; ++j) {
      row[j] = total != 0.0 ? row[j] / total : row[j];
      largest = std::max(largest, row[j]);
    }
    out.taps[static_cast<std::size_t>(i)] = {first, count};
  }
  out.precision = precision_of(largest);
  out.values.reserve(weights.size());
  for (const double weight : weights) {
    const double scaled = weight * (1 << out.precision);
    out.values.push_back(static_cast<int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5));
  }
  return out;
}

uint8_t rounded(int32_t sum, int precision) {
  return static_cast<uint8_t>(std::clamp(sum >> precision, 0, 255));
}

// Rows of another width.
RgbImage resize_rows(const RgbImage& image, int64_t width) {
  const Weights weights = weights_of(image.width, width);
  RgbImage out{image.height, width, {}};
  out.rgb.resize(static_cast<std::size_t>(image.height * width * 3));
  uint8_t* to = out.rgb.data();
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* row = image.rgb.data() + y * image.width * 3;
    for (int64_t x = 0; x < width; ++x, to += 3) {
      const Taps taps = weights.taps[static_cast<std::size_t>(x)];
      const int32_t* w = weights.values.data() + x * weights.most;
      const uint8_t* from = row + taps.first * 3;
      int32_t sums[3];
      std::fill_n(sums, 3, 1 << (weights.precision - 1));
      for (int64_t k = 0; k < taps.count; ++k, from += 3) {
        sums[0] += w[k] * from[0];
        sums[1] += w[k] * from[1];
        sums[2] += w[k] * from[2];
      }
      for (int c = 0; c < 3; ++c) {
        to[c] = rounded(sums[c], weights.precision);
      }
    }
  }
  return out;
}

// Columns of another height.
RgbImage resize_columns(const RgbImage& image, int64_t height) {
  const Weights weights = weights_of(image.height, height);
  const auto stride = static_cast<std::size_t>(image.width * 3);
  RgbImage out{height, image.width, {}};
  out.rgb.resize(static_cast<std::size_t>(height) * stride);
  std::vector<int32_t> sums(stride);
  for (int64_t y = 0; y < height; ++y) {
    const Taps taps = weights.taps[static_cast<std::size_t>(y)];
    std::fill(sums.begin(), sums.end(), 1 << (weights.precision - 1));
    for (int64_t k = 0; k < taps.count; ++k) {
      const int32_t w = weights.values[static_cast<std::size_t>(y * weights.most + k)];
      const uint8_t* from = image.rgb.data() + static_cast<std::size_t>(taps.first + k) * stride;
      for (std::size_t x = 0; x < stride; ++x) {
        sums[x] += w * from[x];
      }
    }
    uint8_t* to = out.rgb.data() + static_cast<std::size_t>(y) * stride;
    for (std::size_t x = 0; x < stride; ++x) {
      to[x] = rounded(sums[x], weights.precision);
    }
  }
  return out;
}

}  // namespace

RgbImage resize_bicubic(const RgbImage& image, ImageSize size) {
  if (image.height < 1 || image.width < 1 || size.height < 1 || size.width < 1) {
    throw std::invalid_argument("an image of " + std::to_string(image.height) + " x " +
                                std::to_string(image.width) + " resized to " +
                                std::to_string(size.height) + " x " + std::to_string(size.width) +
                                ", expected sides of at least 1");
  }
  if (size.width == image.width && size.height == image.height) {
    return image;
  }
  if (size.width == image.width) {
    return resize_columns(image, size.height);
  }
  const RgbImage rows = resize_rows(image, size.width);
  return size.height == image.height ? rows : resize_columns(rows, size.height);
}

}  // namespace ringside::engine
