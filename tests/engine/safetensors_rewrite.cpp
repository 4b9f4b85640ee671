// safetensors_rewrite IN OUT: reads every tensor of a file and writes it again, for
// safetensors_parity.py.
#include <ATen/ATen.h>

#include <exception>
#include <iostream>

#include "engine/io/safetensors.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: safetensors_rewrite IN OUT\n";
    return 2;
  }
  try {
    const ringside::engine::SafetensorsFile in(argv[1]);
    std::vector<ringside::engine::TensorToWrite> tensors;
    for (std::size_t i = 0; i < in.entries().size(); ++i) {
      tensors.push_back({in.entries()[i].name, in.tensor(i), in.entries()[i].dtype});
    }
    ringside::engine::write_safetensors(argv[2], std::move(tensors));
  } catch (const std::exception& e) {
    std::cerr << "safetensors_rewrite: " << e.what() << "\n";
    return 1;
  }
  return 0;
}
