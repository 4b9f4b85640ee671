#include "rl/step/column_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "rl/data/token_routes.h"

namespace ringside::rl {
namespace {

// A column of the policy losses: its name, where it is in the step's table, and its value where
// that is empty; none: there is no such column then.
struct LossColumn {
  const char* name;
  std::vector<double> StepColumns::*column;
  std::optional<double> otherwise;
};

constexpr std::array kLossColumns = {
    LossColumn{"weight", &StepColumns::weight, 0.0},
    LossColumn{"rollout_logprob", &StepColumns::rollout, 0.0},
    LossColumn{"old_logprob", &StepColumns::old, std::nullopt},
    LossColumn{"reference_logprob", &StepColumns::reference, 0.0},
    LossColumn{"teacher_logprob", &StepColumns::teacher, std::nullopt},
    LossColumn{"advantage", &StepColumns::advantage, 0.0},
    LossColumn{"correction", &StepColumns::correction, 1.0},
    LossColumn{"chosen", &StepColumns::chosen, std::nullopt},
};

}  // namespace

at::Tensor routes_of(const sp::MicroBatch& batch, const engine::ModelConfig& model) {
  const auto found = batch.fields.find(kRoutesField);
  if (found == batch.fields.end()) {
    return {};
  }
  const at::Tensor& ids_sw = found->second;
  const auto layers = static_cast<int64_t>(expert_layers(model).size());
  const bool whole = ids_sw.scalar_type() == at::kByte || ids_sw.scalar_type() == at::kShort;
  TORCH_CHECK(layers > 0 && whole && ids_sw.size(1) == layers * model.experts.per_token,
              "routes of ", ids_sw.size(1), " experts a token (", ids_sw.scalar_type(),
              ") for a model whose tokens use ", model.experts.per_token, " experts in ", layers,
              " layers");
  return ids_sw.view({ids_sw.size(0), layers, model.experts.per_token});
}

void HostCopies::add(const at::Tensor& on_device, Put put) {
  copies_.push_back({on_device, std::move(put)});
}

void HostCopies::store() {
  std::map<at::ScalarType, std::vector<const Copy*>> by_dtype;
  for (const Copy& copy : copies_) {
    by_dtype[copy.on_device.scalar_type()].push_back(&copy);
  }
  for (const auto& [dtype, copies] : by_dtype) {
    std::vector<at::Tensor> all;
    std::vector<int64_t> sizes;
    for (const Copy* copy : copies) {
      all.push_back(copy->on_device.flatten());
      sizes.push_back(copy->on_device.numel());
    }
    const auto parts = at::cat(all).to(at::kCPU).split_with_sizes(sizes);
    for (std::size_t i = 0; i < copies.size(); ++i) {
      copies[i]->put(parts[i].view(copies[i]->on_device.sizes()));
    }
  }
  copies_.clear();
}

at::ScalarType column_dtype(at::ScalarType compute_dtype) {
  return compute_dtype == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor read_column(const std::vector<double>& column, const sp::MicroBatch& batch,
                       int64_t first_token, at::ScalarType dtype, double otherwise) {
  if (column.empty()) {
    return at::full({batch.num_entries()}, otherwise, dtype);
  }
  std::vector<double> values;
  values.reserve(batch.entry_index.size());
  for (const int64_t entry : batch.entry_index) {
    values.push_back(column.at(first_token + entry));
  }
  return at::tensor(values, at::kDouble).to(dtype);
}

engine::KeptSets read_sets(const TokenSets& sets, const sp::MicroBatch& batch,
                           int64_t first_token) {
  if (!sets.any()) {
    return {};
  }
  engine::KeptSets read{{0}, {}, {}};
  std::vector<int32_t> entries, words;
  for (std::size_t i = 0; i < batch.entry_index.size(); ++i) {
    const int64_t token = first_token + batch.entry_index[i];
    const int64_t begin = sets.begin.at(token), end = sets.begin.at(token + 1);
    words.insert(words.end(), sets.ids.begin() + begin, sets.ids.begin() + end);
    entries.insert(entries.end(), end - begin, static_cast<int32_t>(i));
    read.begin.push_back(static_cast<int64_t>(words.size()));
  }
  read.entry_m = at::tensor(entries, at::kInt);
  read.word_m = at::tensor(words, at::kInt);
  return read;
}

void ColumnOutputs::add(std::vector<double>& column, const sp::MicroBatch& batch,
                        int64_t first_token, const at::Tensor& values_n) {
  if (!values_n.defined()) {
    return;
  }
  TORCH_CHECK(values_n.dim() == 1 && values_n.numel() == batch.num_entries(),
              "column: ", values_n.sizes(), " values for ", batch.num_entries(), " loss entries");
  outputs_.push_back({&column, &batch, first_token, values_n.to(at::kDouble)});
}

void ColumnOutputs::store() {
  if (outputs_.empty()) {
    return;
  }
  std::vector<at::Tensor> all;
  for (const Output& output : outputs_) {
    all.push_back(output.values_n);
  }
  const at::Tensor values = at::cat(all).to(at::kCPU);
  const double* next = values.const_data_ptr<double>();
  for (const Output& output : outputs_) {
    for (const int64_t entry : output.batch->entry_index) {
      output.column->at(output.first_token + entry) = *next++;
    }
  }
  outputs_.clear();
}

engine::Columns loss_columns(const StepColumns& columns, const sp::MicroBatch& batch,
                             int64_t first_token, at::ScalarType dtype) {
  engine::Columns result;
  result.set("sample", batch.sample_n);
  for (const LossColumn& row : kLossColumns) {
    const std::vector<double>& column = columns.*row.column;
    if (!column.empty() || row.otherwise) {
      result.set(row.name,
                 read_column(column, batch, first_token, dtype, row.otherwise.value_or(0.0)));
    }
  }
  return result;
}

std::vector<engine::ModelInput> model_inputs(const LocalBatch& local, const StepColumns& columns,
                                             at::ScalarType dtype) {
  std::vector<engine::ModelInput> inputs;
  for (const sp::MicroBatch& batch : local.micro_batches) {
    inputs.push_back(
        {&batch, read_column(columns.temperature, batch, local.first_token, dtype, 1.0)});
  }
  return inputs;
}

std::vector<engine::ModelInput> policy_inputs(const LocalBatch& local, const StepColumns& columns,
                                              at::ScalarType dtype) {
  std::vector<engine::ModelInput> inputs = model_inputs(local, columns, dtype);
  for (std::size_t i = 0; i < local.routes.size(); ++i) {
    inputs[i].routes_sLK = local.routes[i];
  }
  for (engine::ModelInput& input : inputs) {
    input.kept = read_sets(columns.kept_sets, *input.batch, local.first_token);
  }
  return inputs;
}

std::vector<engine::ModelInput> training_inputs(const LocalBatch& local, const StepColumns& columns,
                                                at::ScalarType dtype) {
  std::vector<engine::ModelInput> inputs = policy_inputs(local, columns, dtype);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    engine::ModelInput& input = inputs[i];
    input.columns = loss_columns(columns, *input.batch, local.first_token, dtype);
    input.scores_whole = input.kept.any() && !columns.reference.empty();
    if (i < local.said.size()) {
      input.columns.set("temperature", input.temperature_n);
      for (const auto& [name, said] : local.said[i].all()) {
        input.columns.set(name, said);
      }
    }
  }
  return inputs;
}

void merge_columns(std::span<std::vector<double>* const> columns, sp::Communicator& ranks) {
  if (columns.empty() || columns.front()->empty()) {
    return;
  }
  const auto tokens = static_cast<int64_t>(columns.front()->size());
  const auto count = static_cast<int64_t>(columns.size());
  at::Tensor table = at::empty({count, tokens}, at::kDouble);
  for (int64_t c = 0; c < count; ++c) {
    std::copy(columns[c]->begin(), columns[c]->end(), table.data_ptr<double>() + c * tokens);
  }
  ranks.all_reduce_sum(table, "scores");
  for (int64_t c = 0; c < count; ++c) {
    const double* merged = table.const_data_ptr<double>() + c * tokens;
    columns[c]->assign(merged, merged + tokens);
  }
}

}  // namespace ringside::rl
