// rope_dump DIR MAX_DOCUMENT_TOKENS POSITIONS OUT: writes cos, then sin, of positions 0, 1, ... of
// the model in DIR as fp32 [POSITIONS, D/2], for the comparison with transformers in
// rope_parity.py.
#include <ATen/ATen.h>

#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>

#include "engine/io/model_config_json.h"
#include "engine/nn/rope.h"

namespace engine = ringside::engine;

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: rope_dump DIR MAX_DOCUMENT_TOKENS POSITIONS OUT\n";
    return 2;
  }
  try {
    engine::ModelConfig config = engine::load_model_config(argv[1]);
    config.max_document_tokens = std::stoll(argv[2]);
    const auto tables = engine::rope_tables(engine::rope_frequencies(config.rope()),
                                            at::arange(std::stoll(argv[3]), at::kLong), at::kFloat);
    std::ofstream out(argv[4], std::ios::binary);
    for (const at::Tensor& table : {tables.cos_s1d, tables.sin_s1d}) {
      const at::Tensor whole = table.contiguous();
      out.write(static_cast<const char*>(whole.const_data_ptr()),
                static_cast<std::streamsize>(whole.nbytes()));
    }
    return out.flush() ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "rope_dump: " << e.what() << "\n";
    return 1;
  }
}
