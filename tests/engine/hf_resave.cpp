// hf_resave IN OUT float32|bfloat16 [MAX_SHARD_BYTES]: loads a Hugging Face directory and saves it
// again, for the comparison with transformers in hf_roundtrip.py.
#include <ATen/ATen.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "engine/io/atomic_directory.h"
#include "engine/io/hf_directory.h"

namespace engine = ringside::engine;

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::cerr << "usage: hf_resave IN OUT float32|bfloat16 [MAX_SHARD_BYTES]\n";
    return 2;
  }
  try {
    const engine::Decoder decoder = engine::load_decoder(argv[1], at::kFloat);
    engine::SaveOptions options;
    options.copy_from = argv[1];
    if (argc == 5) {
      options.max_shard_bytes = std::stoll(argv[4]);
    }
    engine::AtomicDirectory out(argv[2]);
    const bool half = std::string(argv[3]) == "bfloat16";
    engine::save_decoder(decoder, out.path(), half ? at::kBFloat16 : at::kFloat, options);
    out.commit();
  } catch (const std::exception& e) {
    std::cerr << "hf_resave: " << e.what() << "\n";
    return 1;
  }
  return 0;
}
