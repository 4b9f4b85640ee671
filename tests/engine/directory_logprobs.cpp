// directory_logprobs: what Ringside computes with Hugging Face directories, for the comparison with
// transformers in published_configs.py. One process for many directories.
//
// In: a JSON object a line, {"model": DIR, "ids": [[...], ...]}, perhaps with "max_document_tokens"
// and "save_to": a directory where the model is saved again. Out: a line for each,
// {"logprobs": [...]} of every document's tokens after its first, one document after another, in
// fp32, or {"error": "..."}.
#include <ATen/ATen.h>

#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/hf_directory.h"
#include "engine/models/headed_model.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/model_runner.h"
#include "sp/batch/collator.h"
#include "tests/support/ranks.h"

namespace {

using namespace ringside;

std::unique_ptr<engine::Decoder> load(const nlohmann::json& request) {
  const std::filesystem::path dir = request.at("model").get<std::string>();
  engine::ModelConfig config = engine::load_model_config(dir);
  config.fp32_norms = true;  // as transformers
  config.max_document_tokens = request.value("max_document_tokens", int64_t{0});
  auto decoder = std::make_unique<engine::Decoder>(config, engine::ComputeContext(at::kFloat));
  engine::load_weights(dir, *decoder);
  return decoder;
}

std::vector<double> logprobs_of(std::unique_ptr<engine::Decoder> decoder,
                                const std::vector<std::vector<int64_t>>& lists) {
  std::vector<sp::Document> documents;
  int64_t tokens = 0, entries = 0;
  for (const std::vector<int64_t>& ids : lists) {
    sp::Document document{ids, {}};
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      document.entries.add(static_cast<int64_t>(i), ids[i + 1]);
    }
    tokens += static_cast<int64_t>(ids.size());
    entries += document.entries.size();
    documents.push_back(std::move(document));
  }
  std::vector<double> logprobs(entries);
  test::run_ranks_in_memory({1, 1, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    const engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(std::move(decoder)),
                                     groups);
    const auto batches = sp::collate(
        documents, mesh, engine::collator_options(runner.decoder().config(), tokens, {}));
    TORCH_CHECK(batches.size() == 1, batches.size(), " micro-batches");
    const std::vector<engine::ModelInput> inputs{
        {&batches[0], at::ones({batches[0].num_entries()})}};
    runner.evaluate(inputs, [&](std::size_t, const engine::HeadOutput& output) {
      const at::Tensor values = output.logprobs_n.to(at::kDouble).contiguous();
      for (std::size_t i = 0; i < batches[0].entry_index.size(); ++i) {
        logprobs[batches[0].entry_index[i]] = values.const_data_ptr<double>()[i];
      }
    });
  });
  return logprobs;
}

nlohmann::json answer(const std::string& line) {
  try {
    const nlohmann::json request = nlohmann::json::parse(line);
    auto decoder = load(request);
    if (request.contains("save_to")) {
      const std::filesystem::path to = request["save_to"].get<std::string>();
      std::filesystem::create_directories(to);
      engine::save_decoder(*decoder, to, at::kFloat);
    }
    return {{"logprobs", logprobs_of(std::move(decoder), request.at("ids"))}};
  } catch (const c10::Error& error) {
    return {{"error", error.what_without_backtrace()}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(line).dump() << std::endl;
  }
}
