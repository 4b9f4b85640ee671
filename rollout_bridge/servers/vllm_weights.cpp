// Weight updates of VllmServer.
#include <unistd.h>

#include <utility>

#include "rollout_bridge/base/base64.h"
#include "rollout_bridge/servers/answer.h"
#include "rollout_bridge/servers/vllm.h"

namespace ringside::bridge {
namespace {

using nlohmann::json;

constexpr const char* kCollectiveRpc = "/collective_rpc";

// Arguments of the extension's methods and of the engine's update_info.
json update_info(const WeightSource& source, std::chrono::milliseconds limit) {
  return {{"address", source.address},
          {"manifest", base64(source.manifest)},
          {"run_id", source.run_id},
          {"trainer_term", source.trainer_term},
          {"timeout_s", std::chrono::duration<double>(limit).count()}};
}

}  // namespace

std::size_t VllmServer::count_extended_ranks(Deadline deadline) const {
  const Result<JsonAnswer> info =
      http().post_json(kCollectiveRpc, {{"method", "ringside_weight_info"}}, deadline);
  const json* results = info ? member(info.value().value, "results") : nullptr;
  return results != nullptr && results->is_array() ? results->size() : 0;
}

Status VllmServer::reload(const std::string& path, Deadline deadline) const {
  const auto limit = std::chrono::ceil<std::chrono::seconds>(options().load_deadline);
  const json body{{"method", "reload_weights"},
                  {"args", json::array()},
                  {"kwargs", {{"weights_path", path}}},
                  {"timeout", limit.count()}};
  return command(kCollectiveRpc, body.dump(), deadline);
}

Status VllmServer::change_adapter(const std::string& path, int64_t version,
                                  const std::string& adapter, Deadline deadline) {
  const std::string name = "ringside-" + (adapter.empty() ? "" : adapter + "-") + "v" +
                           std::to_string(version) + "-" + std::to_string(::getpid()) + "-" +
                           std::to_string(++adapters_);
  const Status loaded = command("/v1/load_lora_adapter",
                                json{{"lora_name", name}, {"lora_path", path}}.dump(), deadline);
  if (!loaded) {
    Error error = loaded.error();
    if (error.reason == Reason::kUnsupported) {
      error.detail +=
          "; adapters need VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and "
          "--max-lora-rank";
    }
    return error;
  }
  const std::string old = adapter_->exchange(adapter, name);
  if (!old.empty()) {
    const Status unloaded =
        command("/v1/unload_lora_adapter", json{{"lora_name", old}}.dump(), deadline);
    // A server that was restarted does not know it.
    if (!unloaded && unloaded.error().reason != Reason::kUnsupported) {
      return unloaded;
    }
  }
  return label_and_flush(version, deadline);
}

Status VllmServer::load(const std::string& path, int64_t version, Deadline deadline) {
  if (weights_ == VllmWeights::kReload) {
    const Status reloaded = reload(path, deadline);
    return reloaded ? label_and_flush(version, deadline) : reloaded;
  }
  Status status = command("/start_weight_update", "", deadline);
  const auto run = [&](const char* route, const json& body) {
    if (status) {
      status = command(route, body.dump(), deadline);
    }
  };
  run("/update_weights", {{"update_info", {{"path", path}}}});
  run("/finish_weight_update", {{"weight_version", std::to_string(version)}});
  return status ? flush(version, deadline) : status;
}

Result<std::string> VllmServer::rpc_root(const char* method, const json& arguments,
                                         Deadline deadline) const {
  const double seconds = std::chrono::duration<double>(options().load_deadline).count();
  const json body{
      {"method", method}, {"args", json::array()}, {"kwargs", arguments}, {"timeout", seconds}};
  const Result<JsonAnswer> answer = http().post_json(kCollectiveRpc, body, deadline);
  if (!answer) {
    return answer.error();
  }
  const json* results = member(answer.value().value, "results");
  if (results == nullptr || !results->is_array() || results->empty()) {
    return answer.value().wrong(Reason::kMalformed, "no results");
  }
  std::optional<std::string> root;
  for (const json& result : *results) {
    const auto own = text_member(result, "root_hash");
    if (!own || (root && *root != *own)) {
      return answer.value().wrong(Reason::kChecksum, "not one root_hash of all ranks");
    }
    root = own;
  }
  return *root;
}

Result<std::string> VllmServer::pull_by_extension(const WeightSource& source,
                                                  Deadline deadline) const {
  const json update = update_info(source, options().load_deadline);
  if (extended_ranks_ <= 1) {
    return rpc_root("ringside_pull_weights", update, deadline);
  }
  const Result<std::string> staged = rpc_root("ringside_stage_weights", update, deadline);
  if (!staged) {
    return staged;
  }
  return rpc_root("ringside_install_weights", {{"root_hash", staged.value()}}, deadline);
}

Status VllmServer::pull_by_engine(const WeightSource& source, Deadline deadline) const {
  // Sent each time, because the server may have been restarted; it does not open a connection.
  Status status = command("/init_weight_transfer_engine", R"({"init_info":{}})", deadline);
  if (!status) {
    return status;
  }
  status = command("/start_weight_update", "{}", deadline);
  if (!status && status.error().reason == Reason::kClosed) {
    // An update whose end did not arrive may still be open. This update overwrites its tensors.
    const Status ended = command("/finish_weight_update", "", deadline);
    if (ended) {
      status = command("/start_weight_update", "{}", deadline);
    }
  }
  if (status) {
    const json body{{"update_info", update_info(source, options().load_deadline)}};
    status = command("/update_weights", body.dump(), deadline);
  }
  return status ? command("/finish_weight_update", "", deadline) : status;
}

Result<std::string> VllmServer::pull(const WeightSource& source, Deadline deadline) {
  std::string root;
  if (weights_ == VllmWeights::kEngine) {
    const Status updated = pull_by_engine(source, deadline);
    if (!updated) {
      return updated.error();
    }
    root = source.root_hash;
  } else {
    Result<std::string> pulled = pull_by_extension(source, deadline);
    if (!pulled) {
      return pulled;
    }
    root = std::move(pulled).value();
  }
  const Status settled = label_and_flush(source.version, deadline);
  if (!settled) {
    return settled.error();
  }
  return root;
}

Status VllmServer::label_and_flush(int64_t version, Deadline deadline) {
  if (has_label_) {
    const json label{{"new_version", std::to_string(version)}};
    const Status labelled = command("/update_weight_version", label.dump(), deadline);
    if (!labelled) {
      return labelled;
    }
  }
  return flush(version, deadline);
}

Status VllmServer::flush(int64_t version, Deadline deadline) {
  const Status flushed = command("/reset_prefix_cache", "", deadline);
  return flushed ? check_label(version) : flushed;
}

Status VllmServer::check_label(int64_t version) {
  if (!has_label_) {
    return Success{};
  }
  const std::string label = std::to_string(version);
  const Result<std::string> now = weight_version();
  if (!now) {
    return now.error();
  }
  if (now.value() == label) {
    return Success{};
  }
  return Error{Reason::kInvalidField, options().url + ": its weights are labelled '" +
                                          clip_text(now.value(), 200) + "' after loading version " +
                                          label};
}

Result<std::string> VllmServer::weight_version() {
  const Result<JsonAnswer> answer = http().get_json("/weight_info", in(options().control_deadline));
  if (!answer) {
    return answer.error();
  }
  const auto label = text_member(answer.value().value, "weight_version");
  if (!label) {
    return answer.value().wrong(Reason::kMalformed, "no weight_version");
  }
  return *label;
}

}  // namespace ringside::bridge
