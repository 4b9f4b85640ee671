// further_parity DIR TASK.json OUT.safetensors: the loss of further tokens of a Hugging Face
// directory and its gradients in fp64, for the comparison with a reference in further_parity.py.
// The layouts run one after the other, each with its ranks as threads.
//
// TASK.json: {"documents": [ids ...], "coef": c}. What is minimised is the negative mean log-prob
// of all tokens but each document's first, plus c times the loss of further tokens. OUT:
// "loss/<layout>", fp64 [1], of further tokens; "gradient/<layout>/<parameter>".
#include <ATen/ATen.h>

#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/io/hf_directory.h"
#include "engine/json/json_object.h"
#include "engine/layers/decoder_layer.h"
#include "engine/params/sharding.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/model_runner.h"
#include "sp/batch/next_ids.h"
#include "tests/support/ranks.h"

namespace {

using namespace ringside;
using Lists = std::vector<std::vector<int64_t>>;

struct Layout {
  std::string name;
  sp::MeshShape mesh = {};
  bool detach = true;
  bool async_ulysses = false;
  engine::Recompute recompute = engine::Recompute::kNone;
};

const std::vector<Layout> kLayouts{
    {"1", {1, 1, 1}},
    {"1, shared", {1, 1, 1}, /*detach=*/false},
    {"1, shared, recomputed", {1, 1, 1}, false, false, engine::Recompute::kFull},
    {"ring 2, shared", {1, 2, 1}, false},
    {"ulysses 2, shared", {1, 1, 2}, false},
    {"asynchronous ulysses 2", {1, 1, 2}, true, true},
    {"ring 2 x ulysses 2", {1, 2, 2}},
    {"experts on 2, shared", {.ulysses = 2, .expert = 2}, false},
    {"ring 2 x ulysses 2, experts on 4", {.ring = 2, .ulysses = 2, .expert = 4}}};

std::unique_ptr<engine::Decoder> load(const char* dir, const engine::ComputeContext& context) {
  engine::ModelConfig config = engine::load_model_config(dir);
  config.on_disk.predicts_further = true;
  auto decoder = std::make_unique<engine::Decoder>(config, context);
  engine::load_weights(dir, *decoder);
  return decoder;
}

// Every token after the first is a target.
std::vector<sp::Document> scored(const Lists& lists) {
  std::vector<sp::Document> documents;
  for (const std::vector<int64_t>& ids : lists) {
    sp::Document document{ids, {}};
    document.ids.pop_back();
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      document.entries.add(static_cast<int64_t>(i), ids[i + 1]);
    }
    sp::add_next_ids(document);
    documents.push_back(std::move(document));
  }
  return documents;
}

engine::ComputeContext context_of(const Layout& layout, const sp::ProcessGroups& groups) {
  engine::ComputeContext context(at::kDouble);
  if (layout.mesh.expert > 1) {
    context.experts = std::make_shared<const engine::ExpertSharding>(engine::ExpertSharding{
        groups.tensors(sp::axes::kExpert),
        std::make_shared<const engine::Sharding>(engine::Sharding{
            groups.tensors(sp::axes::kNone), groups.tensors(sp::axes::kSameExperts)})});
  }
  return context;
}

// Of all parameters of the unit, on every rank that holds a part of it.
at::Tensor whole_gradient(const engine::ParamUnit& unit) {
  const engine::UnitPart& part = unit.storage().part();
  return part.ranks == nullptr ? unit.grad()
                               : part.ranks->all_gather_rows(unit.grad(), part.sizes, "test");
}

void add_pass(const char* dir, const Layout& layout, const std::vector<sp::Document>& documents,
              double coef, std::vector<engine::TensorToWrite>& results) {
  int64_t entries = 0, tokens = 0;
  for (const sp::Document& document : documents) {
    entries += document.entries.size();
    tokens += static_cast<int64_t>(document.ids.size());
  }
  test::run_ranks_in_memory(
      layout.mesh,
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        engine::ModelRunner runner(
            std::make_unique<engine::LanguageModel>(load(dir, context_of(layout, groups))), groups,
            engine::AdamWOptions{});
        runner.decoder().set_activation_options({.recompute = layout.recompute});
        runner.predict_further_tokens({coef, layout.detach});
        sp::SequenceOptions options;
        options.async_ulysses = layout.async_ulysses;
        const auto batches = sp::collate(
            documents, mesh, engine::collator_options(runner.decoder().config(), tokens, options));
        std::vector<engine::ModelInput> inputs;
        for (const sp::MicroBatch& batch : batches) {
          inputs.push_back({&batch, at::ones({batch.num_entries()}, at::kDouble)});
        }
        runner.train(inputs, [&](const engine::HeadOutput& output, auto) {
          return -output.logprobs_n.sum() / static_cast<double>(entries);
        });
        for (const engine::ParamUnit* unit : runner.model().units()) {
          const at::Tensor grad = whole_gradient(*unit);
          for (std::size_t i = 0; mesh.rank() == 0 && i < unit->specs().size(); ++i) {
            results.push_back({"gradient/" + layout.name + "/" + unit->specs()[i].name,
                               unit->layout().view_of(grad, i).clone(), at::kDouble});
          }
        }
        const double loss = runner.step(0.0, 0.0).further_loss.value();
        if (mesh.rank() == 0) {
          results.push_back({"loss/" + layout.name, at::tensor({loss}, at::kDouble), at::kDouble});
        }
      },
      {sp::axes::kExpert, sp::axes::kSameExperts});
}

int run(char** argv) {
  const nlohmann::json task = engine::JsonObject::read(argv[2]).json();
  const engine::ModelConfig config = engine::load_model_config(argv[1]);
  std::vector<engine::TensorToWrite> results;
  for (const Layout& layout : kLayouts) {
    if ((layout.async_ulysses && !engine::supports(config, engine::Feature::kAsyncUlysses)) ||
        (config.experts.count == 0 && layout.mesh.expert > 1)) {
      continue;  // refused
    }
    add_pass(argv[1], layout, scored(task["documents"].get<Lists>()), task["coef"], results);
  }
  engine::write_safetensors(argv[3], std::move(results));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: further_parity DIR TASK.json OUT.safetensors\n";
    return 2;
  }
  try {
    return run(argv);
  } catch (const std::exception& e) {
    std::cerr << "further_parity: " << e.what() << "\n";
    return 1;
  }
}
