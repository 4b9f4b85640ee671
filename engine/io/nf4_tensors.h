// Tensors in the form that bitsandbytes stores nf4 in: beside the packed tensor X come X.absmax,
// X.quant_map, X.quant_state.bitsandbytes__nf4 (JSON), and with quantised magnitudes
// X.nested_absmax and X.nested_quant_map.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/safetensors.h"
#include "engine/params/quantised_matrix.h"

namespace ringside::engine {

// The name X of a tensor that is a part beside X; "" for any other name.
std::string nf4_owner(std::string_view name);

// Name of the part that describes X. A tensor that has it is stored as nf4.
std::string nf4_state_name(const std::string& name);

// The shape of X before it was packed. state: the tensor of nf4_state_name().
// Throws: std::runtime_error that says what is wrong with the description.
std::vector<int64_t> nf4_shape(const at::Tensor& state);

// The values of X in fp32. read: returns a part, or X itself, by its name.
// Shapes: returns nf4_shape().
// Throws: std::runtime_error naming a part that is wrong; what `read` throws.
at::Tensor read_nf4(const std::string& name,
                    const std::function<at::Tensor(const std::string&)>& read);

// X and its parts, as bitsandbytes reads them. dtype: to which it unpacks them, bfloat16 or
// float32; any other is written as float32.
// Throws: c10::Error on a matrix in another format.
std::vector<TensorToWrite> nf4_tensors(const std::string& name, const QuantisedMatrix& matrix,
                                       at::ScalarType dtype);

}  // namespace ringside::engine
