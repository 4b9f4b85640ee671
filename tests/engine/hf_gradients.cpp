// hf_gradients IN OUT float32|float64: loads a Hugging Face directory, adds up the log-probs of the
// documents in IN/documents.json and saves the gradients as if they were the weights, for
// hf_gradients.py.
#include <ATen/ATen.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/io/atomic_directory.h"
#include "engine/io/hf_directory.h"
#include "tests/support/local_attention.h"

namespace engine = ringside::engine;
namespace test = ringside::test;

namespace {

// Of each token but a document's first.
at::Tensor sum_of_logprobs(const engine::Decoder& decoder,
                           const std::vector<std::vector<int64_t>>& documents) {
  std::vector<int64_t> lengths, ids, sources, targets;
  for (const std::vector<int64_t>& document : documents) {
    lengths.push_back(static_cast<int64_t>(document.size()));
    for (std::size_t t = 0; t + 1 < document.size(); ++t) {
      sources.push_back(static_cast<int64_t>(ids.size() + t));
      targets.push_back(document[t + 1]);
    }
    ids.insert(ids.end(), document.begin(), document.end());
  }
  test::LocalAttention attention(lengths);
  const at::Tensor hidden =
      decoder.forward(at::tensor(ids, at::kLong), test::packed_positions(lengths), attention);
  const auto n = static_cast<int64_t>(targets.size());
  return decoder
      .score(hidden.index_select(0, at::tensor(sources, at::kLong)), at::tensor(targets, at::kLong),
             at::ones({n}, hidden.options()))
      .logprobs_n.sum();
}

void run(const std::string& in, const std::string& out_dir, bool doubles) {
  engine::ModelConfig config = engine::load_model_config(in);
  config.fp32_norms = doubles;
  engine::Decoder decoder(config, doubles ? at::kDouble : at::kFloat);
  engine::load_weights(in, decoder);
  std::ifstream file(in + "/documents.json");
  sum_of_logprobs(decoder, nlohmann::json::parse(file)).backward();
  const at::NoGradGuard no_grad;
  for (engine::ParamUnit* unit : decoder.units()) {
    unit->flat().copy_(unit->grad());
  }
  engine::AtomicDirectory out(out_dir);
  engine::save_decoder(decoder, out.path(), doubles ? at::kDouble : at::kFloat);
  out.commit();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: hf_gradients IN OUT float32|float64\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], std::string(argv[3]) == "float64");
  } catch (const std::exception& e) {
    std::cerr << "hf_gradients: " << e.what() << "\n";
    return 1;
  }
  return 0;
}
