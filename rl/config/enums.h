// Enumerations of the configuration with their values as written in YAML. What a lower layer names
// is its own enumeration. Torch-free.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "engine/layers/activation_options.h"
#include "engine/optim/lr_schedule.h"
#include "rollout_bridge/base/fsync_policy.h"
#include "sp/layout/placement.h"
#include "sp/mesh/mesh.h"
#include "sp/mesh/node_span.h"
#include "sp/mesh/rank_transport.h"
#include "sp/plan/attention_plan.h"

namespace ringside::rl {

// auto: cuda where this program and this machine have it, else cpu.
enum class DeviceKind { kAuto, kCpu, kCuda };

enum class DType { kFloat32, kBFloat16, kFloat64, kFloat16 };
enum class ModelInit { kPretrained, kRandom };
using engine::LrDecay;
using engine::Recompute;
using sp::CpFsdpMode;
// What is trained of a model's vision tower: nothing, what joins patches to rows, all.
enum class VisionPart { kFrozen, kMergers, kTrained };
enum class OptimizerOffload { kNone, kMoments, kFull };
enum class LoraBase { kModel, kNf4, kInt8 };
enum class LoraPublish { kMerged, kAdapter };
enum class Task { kRl, kSft, kDpo, kRewardModel };
enum class OptimizerKind { kAdamW, kMuon };
// Factor of Muon's orthogonal update of a matrix: sqrt(max(1, rows / columns)), or
// 0.2 sqrt(max(rows, columns)), the size of AdamW's.
enum class MuonScale { kSpectral, kMatchAdamW };
// What the divergence from a teacher is computed over: the sampled token, the teacher's k most
// likely tokens, the whole vocabulary.
enum class DistillationOver { kSampledToken, kTopK, kVocabulary };
enum class DistillationDivergence { kReverseKl, kForwardKl, kJensenShannon };
enum class PreferenceLoss { kSigmoid, kIpo, kHinge };
enum class KlEstimator {
  kK1,
  kAbs,
  kK2,
  kK3,
  kK1Straight,
  kAbsStraight,
  kK3Straight,
  kK3Score,
  kK3Unbiased
};
enum class ImportanceLevel { kToken, kSequence };
enum class KlTo { kReference, kRollout };
enum class KlIn { kLoss, kReward, kAdvantage };
// What an adaptive kl_coef sees: the mean over tokens, or over samples of their mean.
enum class KlAverage { kTokens, kSamples };
// How the entropy bonus is summed: the mean over tokens, or with the weights of the loss.
enum class EntropyAggregation { kTokens, kLoss };
enum class LossAggregation {
  kTokenMean,
  kTokenSum,
  kSeqMeanTokenMean,
  kSeqMeanTokenSum,
  kConstant,
  kMicroBatchTokenMean
};
enum class AdvantageEstimator {
  kGroupMean,
  kRloo,
  kReinforce,
  kGdpo,
  kPassAtK,
  kMaxRl,
  kOpo,
  kRemax,
  kOptimalTokenBaseline,
  kGae,
  kGiven
};
enum class AdvantageStd { kGroup, kBatch, kLeaveOneOut, kNone };
enum class Whiten { kNone, kTokens, kSequences };
// What whiten_eps is added to.
enum class WhitenEpsIn { kVariance, kStd };
enum class OldLogprobs { kRecompute, kRollout };
enum class RouterReplay { kNone, kRollout, kRecompute };
enum class CorrectionMode { kNone, kTis, kIcepop, kMask, kSeqMaskTis };
enum class CorrectionLevel { kToken, kSequence, kGeometric };
enum class DynamicSampling { kNone, kDrop, kRefill };
// Which parameters weight decay acts on: those of two and more dimensions, or all.
enum class WeightDecayOf { kMatrices, kAll };
enum class RolloutServer { kEmbedded, kVllm, kSglang, kLlamaCpp, kPython };
enum class ServerWeights { kAuto, kPull, kEngine, kDisk, kRestart };
enum class ServerPause { kDrain, kAbort, kKeep };
enum class ChatTemplate { kNone, kChatml, kLlama3, kModel };
enum class TextPrompts { kRaw, kUser };
// Whether prompts that are text begin with the tokenizer's special tokens. auto: unless they do.
enum class AddSpecialTokens { kAuto, kTrue, kFalse };
enum class OnOverlong { kError, kDrop, kTruncate };
enum class SpMethod { kAuto, kUlysses, kRing };
// auto: kOneForwardOneBackward, kInterleaved with several stages a rank.
enum class PipelineChoice {
  kAuto,
  kGpipe,
  kOneForwardOneBackward,
  kInterleaved,
  kZeroBubble,
  kZeroBubbleV
};
// auto: where the prediction says that it is faster.
enum class AsyncUlysses { kFalse, kTrue, kAuto };
enum class WeightEncoding { kAuto, kDense };
// Who samples the completions of an evaluation.
enum class EvalBy { kEmbedded, kWorkers };
enum class LogLevel { kDebug, kInfo, kWarn, kError };
enum class ProgressStyle { kAuto, kBar, kLines };

// The YAML words of an enumeration, in the order of its values.
template <class E>
struct EnumNames;

template <>
struct EnumNames<DeviceKind> {
  static constexpr std::array<std::string_view, 3> kNames = {"auto", "cpu", "cuda"};
};
template <>
struct EnumNames<DType> {
  static constexpr std::array<std::string_view, 4> kNames = {"float32", "bfloat16", "float64",
                                                             "float16"};
};
template <>
struct EnumNames<Recompute> {
  static constexpr std::array<std::string_view, 3> kNames = {"none", "full", "selective"};
};
template <>
struct EnumNames<VisionPart> {
  static constexpr std::array<std::string_view, 3> kNames = {"frozen", "mergers", "trained"};
};
template <>
struct EnumNames<OptimizerOffload> {
  static constexpr std::array<std::string_view, 3> kNames = {"none", "moments", "full"};
};
template <>
struct EnumNames<LoraBase> {
  static constexpr std::array<std::string_view, 3> kNames = {"model", "nf4", "int8"};
};
template <>
struct EnumNames<LoraPublish> {
  static constexpr std::array<std::string_view, 2> kNames = {"merged", "adapter"};
};
template <>
struct EnumNames<ModelInit> {
  static constexpr std::array<std::string_view, 2> kNames = {"pretrained", "random"};
};
template <>
struct EnumNames<Task> {
  static constexpr std::array<std::string_view, 4> kNames = {"rl", "sft", "dpo", "reward_model"};
};
template <>
struct EnumNames<OptimizerKind> {
  static constexpr std::array<std::string_view, 2> kNames = {"adamw", "muon"};
};
template <>
struct EnumNames<MuonScale> {
  static constexpr std::array<std::string_view, 2> kNames = {"spectral", "match_adamw"};
};
template <>
struct EnumNames<DistillationOver> {
  static constexpr std::array<std::string_view, 3> kNames = {"sampled_token", "top_k",
                                                             "vocabulary"};
};
template <>
struct EnumNames<DistillationDivergence> {
  static constexpr std::array<std::string_view, 3> kNames = {"reverse_kl", "forward_kl",
                                                             "jensen_shannon"};
};
template <>
struct EnumNames<PreferenceLoss> {
  static constexpr std::array<std::string_view, 3> kNames = {"sigmoid", "ipo", "hinge"};
};
template <>
struct EnumNames<KlEstimator> {
  static constexpr std::array<std::string_view, 9> kNames = {
      "k1",           "abs",         "k2",       "k3",         "k1_straight",
      "abs_straight", "k3_straight", "k3_score", "k3_unbiased"};
};
template <>
struct EnumNames<ImportanceLevel> {
  static constexpr std::array<std::string_view, 2> kNames = {"token", "sequence"};
};
template <>
struct EnumNames<KlTo> {
  static constexpr std::array<std::string_view, 2> kNames = {"reference", "rollout"};
};
template <>
struct EnumNames<KlIn> {
  static constexpr std::array<std::string_view, 3> kNames = {"loss", "reward", "advantage"};
};
template <>
struct EnumNames<KlAverage> {
  static constexpr std::array<std::string_view, 2> kNames = {"tokens", "samples"};
};
template <>
struct EnumNames<EntropyAggregation> {
  static constexpr std::array<std::string_view, 2> kNames = {"tokens", "loss"};
};
template <>
struct EnumNames<LossAggregation> {
  static constexpr std::array<std::string_view, 6> kNames = {
      "token_mean",         "token_sum", "seq_mean_token_mean",
      "seq_mean_token_sum", "constant",  "micro_batch_token_mean"};
};
template <>
struct EnumNames<AdvantageEstimator> {
  static constexpr std::array<std::string_view, 11> kNames = {
      "group_mean", "rloo",      "reinforce",
      "gdpo",       "pass_at_k", "max_rl",
      "opo",        "remax",     "optimal_token_baseline",
      "gae",        "given"};
};
template <>
struct EnumNames<AdvantageStd> {
  static constexpr std::array<std::string_view, 4> kNames = {"group", "batch", "leave_one_out",
                                                             "none"};
};
template <>
struct EnumNames<Whiten> {
  static constexpr std::array<std::string_view, 3> kNames = {"none", "tokens", "sequences"};
};
template <>
struct EnumNames<WhitenEpsIn> {
  static constexpr std::array<std::string_view, 2> kNames = {"variance", "std"};
};
template <>
struct EnumNames<OldLogprobs> {
  static constexpr std::array<std::string_view, 2> kNames = {"recompute", "rollout"};
};
template <>
struct EnumNames<RouterReplay> {
  static constexpr std::array<std::string_view, 3> kNames = {"none", "rollout", "recompute"};
};
template <>
struct EnumNames<CorrectionMode> {
  static constexpr std::array<std::string_view, 5> kNames = {"none", "tis", "icepop", "mask",
                                                             "seq_mask_tis"};
};
template <>
struct EnumNames<CorrectionLevel> {
  static constexpr std::array<std::string_view, 3> kNames = {"token", "sequence", "geometric"};
};
template <>
struct EnumNames<DynamicSampling> {
  static constexpr std::array<std::string_view, 3> kNames = {"none", "drop", "refill"};
};
template <>
struct EnumNames<WeightDecayOf> {
  static constexpr std::array<std::string_view, 2> kNames = {"matrices", "all"};
};
template <>
struct EnumNames<LrDecay> {
  static constexpr std::array<std::string_view, 3> kNames = {"constant", "linear", "cosine"};
};
template <>
struct EnumNames<RolloutServer> {
  static constexpr std::array<std::string_view, 5> kNames = {"embedded", "vllm", "sglang",
                                                             "llama_cpp", "python"};
};
template <>
struct EnumNames<ServerWeights> {
  static constexpr std::array<std::string_view, 5> kNames = {"auto", "pull", "engine", "disk",
                                                             "restart"};
};
template <>
struct EnumNames<ServerPause> {
  static constexpr std::array<std::string_view, 3> kNames = {"drain", "abort", "keep"};
};
template <>
struct EnumNames<ChatTemplate> {
  static constexpr std::array<std::string_view, 4> kNames = {"none", "chatml", "llama3", "model"};
};
template <>
struct EnumNames<TextPrompts> {
  static constexpr std::array<std::string_view, 2> kNames = {"raw", "user"};
};
template <>
struct EnumNames<AddSpecialTokens> {
  static constexpr std::array<std::string_view, 3> kNames = {"auto", "true", "false"};
};
template <>
struct EnumNames<OnOverlong> {
  static constexpr std::array<std::string_view, 3> kNames = {"error", "drop", "truncate"};
};
template <>
struct EnumNames<SpMethod> {
  static constexpr std::array<std::string_view, 3> kNames = {"auto", "ulysses", "ring"};
};
template <>
struct EnumNames<AsyncUlysses> {
  static constexpr std::array<std::string_view, 3> kNames = {"false", "true", "auto"};
};
template <>
struct EnumNames<CpFsdpMode> {
  static constexpr std::array<std::string_view, 4> kNames = {"all", "ulysses_only", "ring_only",
                                                             "none"};
};
template <>
struct EnumNames<PipelineChoice> {
  static constexpr std::array<std::string_view, 6> kNames = {
      "auto", "gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v"};
};
template <>
struct EnumNames<sp::GroupScope> {
  static constexpr std::array<std::string_view, 2> kNames = {"local_node", "global"};
};
template <>
struct EnumNames<sp::RankTransport> {
  static constexpr std::array<std::string_view, 3> kNames = {"auto", "gloo", "shared_memory"};
};
template <>
struct EnumNames<sp::RingImpl> {
  static constexpr std::array<std::string_view, 2> kNames = {"p2p", "all_gather"};
};
template <>
struct EnumNames<sp::Placement> {
  static constexpr std::array<std::string_view, 3> kNames = {"document_aware", "zigzag",
                                                             "contiguous"};
};
template <>
struct EnumNames<bridge::FsyncPolicy> {
  static constexpr std::array<std::string_view, 3> kNames = {"always", "batch", "never"};
};
template <>
struct EnumNames<WeightEncoding> {
  static constexpr std::array<std::string_view, 2> kNames = {"auto", "dense"};
};
template <>
struct EnumNames<EvalBy> {
  static constexpr std::array<std::string_view, 2> kNames = {"embedded", "workers"};
};
template <>
struct EnumNames<LogLevel> {
  static constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warn", "error"};
};
template <>
struct EnumNames<ProgressStyle> {
  static constexpr std::array<std::string_view, 3> kNames = {"auto", "bar", "lines"};
};

// The YAML word of an enumerator, e.g. "token_mean".
// Throws: std::out_of_range for a value outside the enumeration.
template <class E>
constexpr std::string_view to_string(E value) {
  return EnumNames<E>::kNames.at(static_cast<std::size_t>(value));
}

// Of a key that may follow model.dtype: nothing is "model".
inline constexpr std::string_view kAsModel = "model";
template <class E>
constexpr std::string_view to_string(const std::optional<E>& value) {
  return value ? to_string(*value) : kAsModel;
}

}  // namespace ringside::rl
