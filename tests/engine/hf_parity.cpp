// hf_parity DIR float32|float64 TASK.json OUT.safetensors: what Ringside computes with a Hugging
// Face directory, for the comparison with transformers in hf_parity.py. The layouts run one after
// the other, each with its ranks as threads.
//
// TASK.json: {"documents": [ids ...], "prompts": [ids ...], "new_tokens": n, "aux_loss_coef": c}.
// OUT: "logprobs/<layout>", of each document's tokens after its first, one document after another;
// "gradient/<layout>/<parameter>" of their sum, plus aux_loss_coef times the auxiliary loss where
// the layout has it; "aux_loss/<layout>", fp64 [1]; "completion/<i>" of prompt i, the likeliest
// tokens. DIR-saved-<ranks>: DIR saved again by that many ranks that hold its experts between them.
#include <ATen/ATen.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/generate/generator.h"
#include "engine/io/hf_directory.h"
#include "engine/json/json_object.h"
#include "engine/layers/decoder_layer.h"
#include "engine/models/weight_export.h"
#include "engine/params/sharding.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/model_runner.h"
#include "tests/support/ranks.h"

namespace {

using namespace ringside;
using Lists = std::vector<std::vector<int64_t>>;

struct Layout {
  const char* name;
  sp::MeshShape mesh = {};
  sp::RingImpl ring_impl = sp::RingImpl::kP2p;
  bool async_ulysses = false;
  bool aux_loss = false;  // with the load-balancing loss

  bool spreads_experts() const { return mesh.expert > 1; }
};

const std::vector<Layout> kLayouts{
    {"1", {1, 1, 1}},
    {"ulysses 2", {1, 1, 2}},
    {"asynchronous ulysses 2", {1, 1, 2}, sp::RingImpl::kP2p, true},
    {"ring 2", {1, 2, 1}},
    {"all-gather 2", {1, 2, 1}, sp::RingImpl::kAllGather},
    {"ring 2 x ulysses 2", {1, 2, 2}},
    {"ulysses 2, experts on 2", {.ulysses = 2, .expert = 2}},
    {"ring 2 x ulysses 2, experts on 4", {.ring = 2, .ulysses = 2, .expert = 4}},
    {.name = "1, auxiliary loss", .aux_loss = true},
    {.name = "ring 2 x ulysses 2, experts on 4, auxiliary loss",
     .mesh = {.ring = 2, .ulysses = 2, .expert = 4},
     .aux_loss = true}};

std::unique_ptr<engine::Decoder> load(const char* dir, const engine::ComputeContext& context) {
  engine::ModelConfig config = engine::load_model_config(dir);
  config.fp32_norms = true;  // as transformers
  auto decoder = std::make_unique<engine::Decoder>(config, context);
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

engine::ComputeContext context_of(at::ScalarType dtype, const Layout& layout,
                                  const sp::ProcessGroups& groups) {
  engine::ComputeContext context(dtype);
  if (layout.spreads_experts()) {
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
  if (part.ranks == nullptr) {
    return unit.grad();
  }
  return part.ranks->all_gather_rows(unit.grad(), part.sizes, "test");
}

// Rank 0 writes.
void save(const std::string& dir, const engine::Decoder& decoder, sp::Communicator& world) {
  engine::WeightSink files;
  if (world.rank() == 0) {
    std::filesystem::create_directories(dir);
    files = engine::model_files(dir, at::kFloat);
  }
  engine::export_weights(decoder, files, world);
}

void add_pass(const char* dir, at::ScalarType dtype, const Layout& layout,
              const std::vector<sp::Document>& documents, double aux_loss_coef,
              std::vector<engine::TensorToWrite>& results) {
  int64_t entries = 0, tokens = 0;
  for (const sp::Document& document : documents) {
    entries += document.entries.size();
    tokens += static_cast<int64_t>(document.ids.size());
  }
  const at::Tensor logprobs = at::zeros({entries}, at::kDouble);
  const std::string name = layout.name;
  const std::vector<sp::Axes> axes{sp::axes::kExpert, sp::axes::kSameExperts};
  test::run_ranks_in_memory(
      layout.mesh,
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        engine::ModelRunner runner(
            std::make_unique<engine::LanguageModel>(load(dir, context_of(dtype, layout, groups))),
            groups, engine::AdamWOptions{});
        sp::SequenceOptions options;
        if (layout.aux_loss) {
          runner.balance_experts({aux_loss_coef});
        }
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
        for (const engine::ParamUnit* unit : runner.model().units()) {
          const at::Tensor grad = whole_gradient(*unit);
          for (std::size_t i = 0; mesh.rank() == 0 && i < unit->specs().size(); ++i) {
            results.push_back({"gradient/" + name + "/" + unit->specs()[i].name,
                               unit->layout().view_of(grad, i).clone(), at::kDouble});
          }
        }
        if (const auto loss = runner.step(0.0, 0.0).balance_loss; loss && mesh.rank() == 0) {
          results.push_back({"aux_loss/" + name, at::tensor({*loss}, at::kDouble), at::kDouble});
        }
        if (layout.spreads_experts()) {
          save(dir + ("-saved-" + std::to_string(mesh.size(sp::axes::kExpert))), runner.decoder(),
               *groups.control(sp::axes::kLoss));
        }
      },
      axes);
  results.push_back({"logprobs/" + name, logprobs, at::kDouble});
}

Lists lists_of(const nlohmann::json& json) { return json.get<Lists>(); }

// Greedy completions that end at `stops`.
void add_completions(const engine::Decoder& decoder, const nlohmann::json& task,
                     const std::string& prefix, const std::vector<int64_t>& stops,
                     std::vector<engine::TensorToWrite>& results) {
  const auto completions = engine::generate(
      decoder, lists_of(task["prompts"]),
      {.temperature = 0, .max_new_tokens = task["new_tokens"].get<int64_t>(), .stop_ids = stops});
  for (std::size_t i = 0; i < completions.size(); ++i) {
    results.push_back(
        {prefix + std::to_string(i), at::tensor(completions[i].ids, at::kLong), at::kLong});
  }
}

int run(char** argv) {
  const at::ScalarType dtype = std::string(argv[2]) == "float64" ? at::kDouble : at::kFloat;
  const nlohmann::json task = engine::JsonObject::read(argv[3]).json();
  std::vector<engine::TensorToWrite> results;
  const engine::ModelConfig config = engine::load_model_config(argv[1]);
  for (const Layout& layout : kLayouts) {
    // A model with layers that pass a state exchanges synchronously whatever it is told.
    if ((layout.async_ulysses && !engine::passed_state(config) &&
         !engine::supports(config, engine::Feature::kAsyncUlysses)) ||
        (config.experts.count == 0 && (layout.spreads_experts() || layout.aux_loss))) {
      continue;  // refused
    }
    add_pass(argv[1], dtype, layout, scored(lists_of(task["documents"])), task["aux_loss_coef"],
             results);
  }
  const auto decoder = load(argv[1], engine::ComputeContext(dtype));
  add_completions(*decoder, task, "completion/", {}, results);
  add_completions(*decoder, task, "ended/", config.eos_token_ids, results);
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
