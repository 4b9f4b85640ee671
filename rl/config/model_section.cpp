#include "rl/config/sections.h"

namespace ringside::rl {
namespace {

void add_weights_of_model(FieldList& fields, ModelConfig& model) {
  fields.path("model.path", model.path,
              "Hugging Face directory to start from: config.json, tokenizer.json, *.safetensors");
  fields.choice("model.device", model.device,
                "where the model computes: cpu, cuda, or auto = cuda if this program and this "
                "machine have it, else cpu. A rank takes the device of its number on the machine");
  fields.choice("model.dtype", model.dtype,
                "of forward and backward: float32, bfloat16, float16 (with loss scaling), float64; "
                "master weights are fp32 (fp64 for float64)");
  fields.text("model.products", model.products,
              "kernels of a layer's products on the CPU: libtorch; packed = oneDNN's over packed "
              "matrices; auto = measured once for a processor, `ringside doctor` prints what was "
              "found, the same on all ranks and after a resume, libtorch with sp.virtual_ranks; or "
              "what was found elsewhere, as it is printed");
  fields.path(
      "model.reference_path", model.reference_path,
      "directory of the reference policy of the KL term, or of dpo; \"\" = the starting weights");
  fields.choice(
      "model.init", model.init,
      "pretrained = read the weights from path; random = draw weights for path/config.json");
  fields.real("model.init_std", model.init_std, above(0),
              "standard deviation of randomly drawn weights");
}

void add_activations(FieldList& fields, ModelConfig& model) {
  fields.choice("model.recompute", model.recompute,
                "what the backward computes again instead of keeping it: none, full = each layer, "
                "selective = each layer without its attention, so that nothing is sent again");
  fields.flag("model.offload_activations", model.offload_activations,
              "with recompute: what it keeps waits in host memory until the backward; on a CPU "
              "device it stays where it is");
  fields.flag("model.offload_parameters", model.offload_parameters,
              "keep this rank's part of the weights in host memory between uses");
  fields.integer("model.mlp_tile_tokens", model.mlp_tile_tokens, at_least(0),
                 "with recompute: compute an MLP over this many tokens at a time, experts all at "
                 "once; 0 = all at once");
  fields.integer(
      "model.logit_chunk_mb", model.logit_chunk_mb, between(1, 1e6),
      "MiB that the logits of one chunk of tokens may take, with what is computed from them");
  fields.flag(
      "model.fp32_norms", model.fp32_norms,
      "norms in fp32 in float64 models too, as in transformers; `ringside logprobs` sets it");
  fields.integer("model.max_document_tokens", model.max_document_tokens, at_least(0),
                 "longest document that the model is given; longer ones are refused. rope_type "
                 "longrope uses its short factors if this is at most its original length, as "
                 "vLLM's max_model_len; 0 = the positions of config.json");
  fields.real(
      "model.router_aux_loss_coef", model.router_aux_loss_coef, at_least(0),
      "models with experts; factor of a load-balancing loss in what is minimised: transformers', "
      "over the tokens of a micro-batch of all ranks, mean over the micro-batches; 0 = none");
  fields.real(
      "model.router_bias_update_rate", model.router_bias_update_rate, at_least(0),
      "models whose routers have a correction (DeepSeek-V3): what each optimizer step adds to it "
      "for experts below their layer's mean load, and subtracts above; 0 = it is fixed");
  fields.choice("model.vision", model.vision,
                "with data.image_key: what is trained of the model's vision tower: frozen = "
                "nothing, mergers = the layers that make rows of the language model, trained = "
                "all of it. With lora.rank above 0 it is frozen");
}

void add_further_tokens(FieldList& fields, ModelConfig& model) {
  fields.real("model.mtp_loss_coef", model.mtp_loss_coef, at_least(0),
              "models with a layer that predicts one further token (DeepSeek-V3, GLM-4.5, "
              "Qwen3-Next, Qwen3.5): factor of its mean cross-entropy over the loss tokens in what "
              "is minimised; the layer is trained, saved and published. 0 = it is kept as it is");
  fields.flag("model.mtp_detach", model.mtp_detach,
              "with mtp_loss_coef: no gradient of that loss flows to hidden states, embedding and "
              "head, which the layer shares with the model");
}

// What the layer that predicts a further token is not trained with.
void check_further_tokens(const Config& c, std::vector<Mistake>& mistakes) {
  const auto refuse = [&](const char* key, const std::string& why) {
    mistakes.push_back({key, why});
  };
  if (c.model.mtp_loss_coef == 0.0) {
    if (!c.model.mtp_detach) {
      refuse("model.mtp_detach",
             "is false, but model.mtp_loss_coef is 0: no layer that predicts further tokens is "
             "trained; expected true");
    }
    return;
  }
  const std::string is = "is " + text_of(c.model.mtp_loss_coef) + ", but ";
  constexpr const char* kKey = "model.mtp_loss_coef";
  if (c.algorithm.task != Task::kRl && c.algorithm.task != Task::kSft) {
    refuse(kKey, is + "algorithm.task is " + std::string(to_string(c.algorithm.task)) +
                     ", which has no loss over the next tokens alone; expected rl or sft, or 0");
  }
  if (c.lora.rank > 0) {
    refuse(kKey, is + "with lora.rank " + std::to_string(c.lora.rank) +
                     " the weights are constants; expected 0, or lora.rank 0");
  }
  if (!c.data.image_key.empty()) {
    refuse(kKey, is + "data.image_key is set: the layer does not take images; expected 0");
  }
  if (c.parallel.pipeline_parallel_size > 1 || c.parallel.tensor_parallel_size > 1) {
    refuse(kKey, is + "parallel.pipeline_parallel_size or tensor_parallel_size is above 1: the "
                      "layer needs the embedding, the last hidden states and the head on one rank; "
                      "expected 0, or parallel.data_parallel_shard_size in their place");
  }
}

// Keys that act on what recomputation keeps or computes.
void check_activations(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.model.recompute != Recompute::kNone) {
    return;
  }
  const std::string why = ", but model.recompute is none; expected ";
  if (c.model.offload_activations) {
    mistakes.push_back(
        {"model.offload_activations", "is true" + why +
                                          "model.recompute full or selective, whose kept tensors "
                                          "can wait in host memory, or false"});
  }
  if (c.model.mlp_tile_tokens > 0) {
    mistakes.push_back({"model.mlp_tile_tokens",
                        "is " + std::to_string(c.model.mlp_tile_tokens) + why +
                            "model.recompute full or selective, in which the MLP can be tiled, "
                            "or 0"});
  }
}

void check_products(const Config& c, std::vector<Mistake>& mistakes) {
  const std::string& products = c.model.products;
  if (products != "auto" && products != "libtorch" && products != "packed" &&
      !products.starts_with("fp32=")) {
    mistakes.push_back({"model.products", "is '" + products +
                                              "'; expected auto, libtorch, packed or what "
                                              "`ringside doctor` prints"});
  }
}

}  // namespace

void add_model_section(FieldList& fields, ModelConfig& model) {
  add_weights_of_model(fields, model);
  add_activations(fields, model);
  add_further_tokens(fields, model);
  for (const char* key :
       {"model.products", "model.recompute", "model.offload_activations",
        "model.offload_parameters", "model.mlp_tile_tokens", "model.logit_chunk_mb"}) {
    fields.may_change_on_resume(key);
  }
  fields.often_set("model", {"path", "dtype", "recompute"});
}

void check_model_section(const Config& c, std::vector<Mistake>& mistakes) {
  check_activations(c, mistakes);
  check_further_tokens(c, mistakes);
  check_products(c, mistakes);
}

}  // namespace ringside::rl
