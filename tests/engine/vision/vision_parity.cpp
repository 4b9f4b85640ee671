// vision_parity DIR float32|float64 TASK.json PATCHES.safetensors OUT.safetensors: what Ringside
// computes with a directory of a model that takes images, for the comparison in vision_parity.py.
//
// TASK.json: {"documents": [{"ids": [...], "images": [{"begin": n, "grid": [height, width]}]}]}.
// PATCHES: "patches/<document>" of the documents with images.
// OUT, with <way> "plain" or "recomputed": "logprobs/<way>" of each document's tokens after its
// first, one document after another; "gradient/<way>/<parameter>" of their sum; "rows" and
// "deepstack/<k>" of all images, with norms in the model's dtype. DIR-saved: DIR saved again.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/images/positions.h"
#include "engine/io/hf_directory.h"
#include "engine/json/json_object.h"
#include "engine/layers/decoder_layer.h"
#include "tests/support/local_hybrid.h"

namespace {

using namespace ringside;
using engine::ImageSpan;

// All documents, packed.
struct Batch {
  std::vector<int64_t> lengths;
  at::Tensor ids, positions_3s, sources, targets;
  at::Tensor places;  // of the tokens of images
  std::vector<engine::PatchGrid> grids;
  at::Tensor patches;
};

std::vector<ImageSpan> spans_of(const nlohmann::json& document) {
  std::vector<ImageSpan> spans;
  for (const nlohmann::json& image : document["images"]) {
    spans.push_back({image["begin"].get<int64_t>(),
                     {1, image["grid"][0].get<int64_t>(), image["grid"][1].get<int64_t>()}});
  }
  return spans;
}

Batch batch_of(const nlohmann::json& task, const char* patches_file, int64_t merge) {
  const engine::SafetensorsFile file(patches_file);
  std::vector<int64_t> ids, sources, targets, places;
  std::vector<at::Tensor> positions, patches;
  Batch batch;
  for (std::size_t d = 0; d < task["documents"].size(); ++d) {
    const nlohmann::json& document = task["documents"][d];
    const auto of_document = document["ids"].get<std::vector<int64_t>>();
    const auto begin = static_cast<int64_t>(ids.size());
    const auto count = static_cast<int64_t>(of_document.size());
    for (int64_t i = 0; i + 1 < count; ++i) {
      sources.push_back(begin + i);
      targets.push_back(of_document[i + 1]);
    }
    ids.insert(ids.end(), of_document.begin(), of_document.end());
    batch.lengths.push_back(count);
    const std::vector<ImageSpan> spans = spans_of(document);
    const engine::TokenPositions at = engine::token_positions(count, spans, merge);
    positions.push_back(at::stack({at::tensor(at.time, at::kLong), at::tensor(at.height, at::kLong),
                                   at::tensor(at.width, at::kLong)}));
    for (const ImageSpan& span : spans) {
      batch.grids.push_back(span.grid);
      for (int64_t i = 0; i < span.grid.tokens(merge); ++i) {
        places.push_back(begin + span.begin + i);
      }
    }
    for (std::size_t t = 0; t < file.entries().size(); ++t) {
      if (file.entries()[t].name == "patches/" + std::to_string(d)) {
        patches.push_back(file.tensor(t));
      }
    }
  }
  batch.ids = at::tensor(ids, at::kLong);
  batch.positions_3s = at::cat(positions, 1);
  batch.sources = at::tensor(sources, at::kLong);
  batch.targets = at::tensor(targets, at::kLong);
  batch.places = at::tensor(places, at::kLong);
  batch.patches = at::cat(patches);
  return batch;
}

std::unique_ptr<engine::Decoder> load(const char* dir, at::ScalarType dtype, bool fp32_norms) {
  engine::ModelConfig config = engine::load_model_config(dir, {.vision = true});
  config.fp32_norms = fp32_norms;
  auto decoder = std::make_unique<engine::Decoder>(
      config, dtype, engine::WeightStorage{.vision = engine::VisionTraining::kAll});
  engine::load_weights(dir, *decoder);
  return decoder;
}

engine::EncodedImages encode(const engine::Decoder& decoder, const Batch& batch) {
  return decoder.parameters().tower()->encode(batch.patches.to(decoder.compute_dtype()),
                                              batch.grids, decoder.activation_options());
}

std::unique_ptr<engine::AttentionBackend> attention_of(const engine::ModelConfig& config,
                                                       const std::vector<int64_t>& lengths) {
  if (engine::passed_state(config)) {
    return std::make_unique<test::LocalHybrid>(config, lengths);
  }
  return std::make_unique<test::LocalAttention>(lengths);
}

at::Tensor logprobs_of(const engine::Decoder& decoder, const Batch& batch,
                       engine::AttentionBackend& attention, engine::ExpertNotes& notes) {
  engine::EncodedImages images = encode(decoder, batch);
  const at::Tensor hidden =
      decoder.forward(batch.ids, batch.positions_3s, attention, &notes,
                      {batch.places, images.rows_iE, std::move(images.deepstack_iE)});
  const at::Tensor temperature = at::ones(batch.targets.sizes(), decoder.compute_dtype());
  return decoder.score(hidden.index_select(0, batch.sources), batch.targets, temperature)
      .logprobs_n;
}

void add_pass(engine::Decoder& decoder, const Batch& batch, const std::string& way,
              std::vector<engine::TensorToWrite>& results) {
  for (engine::ParamUnit* unit : decoder.units()) {
    unit->zero_grad();
  }
  const auto attention = attention_of(decoder.config(), batch.lengths);
  engine::ExpertNotes notes;
  const at::Tensor logprobs = logprobs_of(decoder, batch, *attention, notes);
  logprobs.sum().backward();
  results.push_back({"logprobs/" + way, logprobs.detach(), at::kDouble});
  for (const engine::ParamUnit* unit : decoder.units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      results.push_back({"gradient/" + way + "/" + unit->specs()[i].name,
                         unit->layout().view_of(unit->grad(), i).clone(), at::kDouble});
    }
  }
}

void add_rows(const engine::Decoder& decoder, const Batch& batch,
              std::vector<engine::TensorToWrite>& results) {
  const at::NoGradGuard no_grad;
  const engine::EncodedImages images = encode(decoder, batch);
  results.push_back({"rows", images.rows_iE, at::kDouble});
  for (std::size_t k = 0; k < images.deepstack_iE.size(); ++k) {
    results.push_back({"deepstack/" + std::to_string(k), images.deepstack_iE[k], at::kDouble});
  }
}

int run(char** argv) {
  const at::ScalarType dtype = std::string(argv[2]) == "float64" ? at::kDouble : at::kFloat;
  const nlohmann::json task = engine::JsonObject::read(argv[3]).json();
  std::vector<engine::TensorToWrite> results;
  const auto decoder = load(argv[1], dtype, /*fp32_norms=*/true);  // as transformers
  const Batch batch = batch_of(task, argv[4], decoder->config().vision->merge);
  add_pass(*decoder, batch, "plain", results);
  decoder->set_activation_options({.recompute = engine::Recompute::kFull});
  add_pass(*decoder, batch, "recomputed", results);
  add_rows(*load(argv[1], dtype, /*fp32_norms=*/false), batch, results);
  if (dtype == at::kFloat) {
    const std::string saved = std::string(argv[1]) + "-saved";
    std::filesystem::create_directories(saved);
    engine::save_decoder(engine::load_decoder(argv[1], dtype, {.vision = true}), saved, at::kFloat);
  }
  engine::write_safetensors(argv[5], std::move(results));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: vision_parity DIR float32|float64 TASK.json PATCHES.safetensors "
                 "OUT.safetensors\n";
    return 2;
  }
  try {
    return run(argv);
  } catch (const std::exception& e) {
    std::cerr << "vision_parity: " << e.what() << "\n";
    return 1;
  }
}
