// hf_parity DIR float32|float64 TASK.json OUT.safetensors: what Ringside computes with a Hugging
// Face directory, for the comparison with transformers in hf_parity.py. The layouts run one after
// the other, each with its ranks as threads.
//
// TASK.json: {"documents": [ids ...], "prompts": [ids ...], "new_tokens": n}.
// OUT: "logprobs/<layout>", of each document's tokens after its first, one document after another;
// "gradient/<layout>/<parameter>" of their sum; "completion/<i>" of prompt i, the likeliest tokens.
#include <ATen/ATen.h>

#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/generate/generator.h"
#include "engine/io/hf_directory.h"
#include "engine/json/json_object.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/model_runner.h"
#include "tests/support/ranks.h"

namespace {

using namespace ringside;
using Lists = std::vector<std::vector<int64_t>>;

struct Layout {
  const char* name;
  sp::MeshShape mesh;
  sp::RingImpl ring_impl = sp::RingImpl::kP2p;
  bool async_ulysses = false;
};

const std::vector<Layout> kLayouts{{"1", {1, 1, 1}},
                                   {"ulysses 2", {1, 1, 2}},
                                   {"asynchronous ulysses 2", {1, 1, 2}, sp::RingImpl::kP2p, true},
                                   {"ring 2", {1, 2, 1}},
                                   {"all-gather 2", {1, 2, 1}, sp::RingImpl::kAllGather},
                                   {"ring 2 x ulysses 2", {1, 2, 2}}};

std::unique_ptr<engine::Decoder> load(const char* dir, at::ScalarType dtype) {
  engine::ModelConfig config = engine::load_model_config(dir);
  config.fp32_norms = true;  // as transformers
  auto decoder = std::make_unique<engine::Decoder>(config, dtype);
  engine::load_weights(dir, *decoder);
  return decoder;
}

// Every token after the first is a target.
std::vector<sp::Document> scored(const Lists& lists) {
  std::vector<sp::Document> documents;
  for (const std::vector<int64_t>& ids : lists) {
    sp::Document document{ids, {}};
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      document.entries.add(static_cast<int64_t>(i), ids[i + 1]);
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

void add_pass(const char* dir, at::ScalarType dtype, const Layout& layout,
              const std::vector<sp::Document>& documents,
              std::vector<engine::TensorToWrite>& results) {
  int64_t entries = 0, tokens = 0;
  for (const sp::Document& document : documents) {
    entries += document.entries.size();
    tokens += static_cast<int64_t>(document.ids.size());
  }
  const at::Tensor logprobs = at::zeros({entries}, at::kDouble);
  const std::string name = layout.name;
  test::run_ranks(layout.mesh, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(load(dir, dtype)), groups,
                               engine::AdamWOptions{});
    sp::SequenceOptions options;
    options.plan.ring_impl = layout.ring_impl;
    options.async_ulysses = layout.async_ulysses;
    const auto batches = sp::collate(
        documents, mesh, engine::collator_options(runner.decoder().config(), tokens, options));
    TORCH_CHECK(batches.size() == 1, batches.size(), " micro-batches");
    const at::Tensor ones = at::ones({batches[0].num_entries()}, dtype);
    const std::vector<engine::ModelInput> inputs{{&batches[0], ones}};
    runner.train(inputs, [&](const engine::HeadOutput& output, auto) {
      // The ranks have different entries.
      auto* to = logprobs.mutable_data_ptr<double>();
      const at::Tensor values = output.logprobs_n.detach().to(at::kDouble).contiguous();
      for (std::size_t i = 0; i < batches[0].entry_index.size(); ++i) {
        to[batches[0].entry_index[i]] = values.const_data_ptr<double>()[i];
      }
      return output.logprobs_n.sum();
    });
    if (mesh.rank() == 0) {
      for (const engine::ParamUnit* unit : runner.model().units()) {
        const at::Tensor grad = unit->grad();
        for (std::size_t i = 0; i < unit->specs().size(); ++i) {
          results.push_back({"gradient/" + name + "/" + unit->specs()[i].name,
                             unit->view_of(grad, i).clone(), at::kDouble});
        }
      }
    }
  });
  results.push_back({"logprobs/" + name, logprobs, at::kDouble});
}

Lists lists_of(const nlohmann::json& json) { return json.get<Lists>(); }

int run(char** argv) {
  const at::ScalarType dtype = std::string(argv[2]) == "float64" ? at::kDouble : at::kFloat;
  const nlohmann::json task = engine::JsonObject::read(argv[3]).json();
  std::vector<engine::TensorToWrite> results;
  const bool latent = engine::load_model_config(argv[1]).has_latent_attention();
  for (const Layout& layout : kLayouts) {
    if (latent && layout.async_ulysses) {
      continue;  // refused
    }
    add_pass(argv[1], dtype, layout, scored(lists_of(task["documents"])), results);
  }
  const auto decoder = load(argv[1], dtype);
  const auto completions =
      engine::generate(*decoder, lists_of(task["prompts"]),
                       {.temperature = 0, .max_new_tokens = task["new_tokens"].get<int64_t>()});
  for (std::size_t i = 0; i < completions.size(); ++i) {
    results.push_back(
        {"completion/" + std::to_string(i), at::tensor(completions[i].ids, at::kLong), at::kLong});
  }
  engine::write_safetensors(argv[4], std::move(results));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: hf_parity DIR float32|float64 TASK.json OUT.safetensors\n";
    return 2;
  }
  try {
    return run(argv);
  } catch (const std::exception& e) {
    std::cerr << "hf_parity: " << e.what() << "\n";
    return 1;
  }
}
