#include "engine/io/nf4_tensors.h"

#include <ATen/ATen.h>

#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace ringside::engine {
namespace {

constexpr std::string_view kState = ".quant_state.bitsandbytes__nf4";
constexpr std::array<std::string_view, 5> kParts = {".absmax", ".quant_map", ".nested_absmax",
                                                    ".nested_quant_map", kState};

struct State {
  std::vector<int64_t> shape;
  int64_t block = 0;
  int64_t nested_block = 0;  // 0: magnitudes are stored as they are
  double nested_offset = 0.0;

  int64_t numel() const {
    int64_t count = 1;
    for (const int64_t size : shape) {
      count *= size;
    }
    return count;
  }
};

State read_state(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.to(at::kByte).contiguous();
  const std::string text(static_cast<const char*>(bytes.const_data_ptr()),
                         static_cast<std::size_t>(bytes.numel()));
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("quant_type") != "nf4") {
      throw std::runtime_error("its quant_type is " + json.at("quant_type").dump() +
                               ", expected \"nf4\"");
    }
    State state;
    state.shape = json.at("shape").get<std::vector<int64_t>>();
    state.block = json.at("blocksize").get<int64_t>();
    state.nested_block = json.value("nested_blocksize", int64_t{0});
    state.nested_offset = json.value("nested_offset", 0.0);
    if (state.block < 1 || state.nested_block < 0 || state.numel() < 1) {
      throw std::runtime_error("it says " + text);
    }
    return state;
  } catch (const nlohmann::json::exception&) {
    throw std::runtime_error("it is no description of nf4: " + text.substr(0, 200));
  }
}

void require_size(const at::Tensor& part, int64_t size, const std::string& name) {
  if (part.numel() != size) {
    throw std::runtime_error("tensor '" + name + "' has " + std::to_string(part.numel()) +
                             " elements, expected " + std::to_string(size));
  }
}

}  // namespace

std::string nf4_owner(std::string_view name) {
  for (const std::string_view part : kParts) {
    if (name.ends_with(part)) {
      return std::string(name.substr(0, name.size() - part.size()));
    }
  }
  return "";
}

std::string nf4_state_name(const std::string& name) { return name + std::string(kState); }

std::vector<int64_t> nf4_shape(const at::Tensor& state) { return read_state(state).shape; }

at::Tensor read_nf4(const std::string& name,
                    const std::function<at::Tensor(const std::string&)>& read) {
  const State state = read_state(read(nf4_state_name(name)));
  const int64_t blocks = (state.numel() + state.block - 1) / state.block;
  const at::Tensor map = read(name + ".quant_map").to(at::kFloat);
  if (!map.equal(nf4_values())) {
    throw std::runtime_error("tensor '" + name + ".quant_map' does not hold the values of nf4");
  }
  const at::Tensor packed = read(name);
  require_size(packed, (state.numel() + 1) / 2, name);
  at::Tensor absmax = read(name + ".absmax");
  require_size(absmax, blocks, name + ".absmax");
  if (state.nested_block > 0) {
    const at::Tensor scale = read(name + ".nested_absmax").to(at::kFloat);
    require_size(scale, (blocks + state.nested_block - 1) / state.nested_block,
                 name + ".nested_absmax");
    const at::Tensor nested_map = read(name + ".nested_quant_map").to(at::kFloat);
    require_size(nested_map, 256, name + ".nested_quant_map");
    absmax = nested_map.index_select(0, absmax.to(at::kInt)) *
                 scale.repeat_interleave(state.nested_block).narrow(0, 0, blocks) +
             state.nested_offset;
  }
  return unpack_nf4(packed, absmax.to(at::kFloat), state.numel(), state.block).view(state.shape);
}

std::vector<TensorToWrite> nf4_tensors(const std::string& name, const QuantisedMatrix& matrix,
                                       at::ScalarType dtype) {
  TORCH_CHECK(matrix.format() == QuantisedFormat::kNf4,
              "nf4 tensors of a matrix in another format");
  const char* dtype_name = dtype == at::kBFloat16 ? "bfloat16" : "float32";
  const std::string state = nlohmann::ordered_json{{"quant_type", "nf4"},
                                                   {"blocksize", kNf4Block},
                                                   {"dtype", dtype_name},
                                                   {"shape", {matrix.rows(), matrix.columns()}}}
                                .dump();
  const at::Tensor bytes = at::tensor(
      at::ArrayRef<uint8_t>(reinterpret_cast<const uint8_t*>(state.data()), state.size()),
      at::kByte);
  return {{name, matrix.packed().view({-1, 1}), at::kByte},
          {name + ".absmax", matrix.absmax(), at::kFloat},
          {name + ".quant_map", nf4_values(), at::kFloat},
          {nf4_state_name(name), bytes, at::kByte}};
}

}  // namespace ringside::engine
