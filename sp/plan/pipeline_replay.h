// Replay of pipeline plans: what is wrong with one, and how long it takes with transfers that take
// time. Integers only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sp/plan/pipeline_plan.h"

namespace ringside::sp {

// [P] the events of each rank, in its order.
using RankEvents = std::vector<std::vector<PipelineEvent>>;

// The events of all ranks of a plan.
RankEvents events_of(const PipelinePlan& plan);

// What is wrong with these events as a pass of `options`, in words; empty when nothing is. Every
// rank executes its events one after another, and a transfer ends only when both its ranks stand at
// it: nothing is buffered. Faults are a run that is missing, of another rank, twice or before what
// it needs, a stage input with a backward both whole and in parts, inputs of a stage out of order,
// a transfer that is missing, twice, of other stages or before its content is made, ranks that wait
// for each other for ever, and more live inputs than options.most_live.
// Throws: std::invalid_argument unless there is a list for each rank.
std::vector<std::string> faults_of(const RankEvents& events, const PipelineOptions& options);
std::vector<std::string> faults_of(const PipelinePlan& plan, const PipelineOptions& options);

// Time from the first run's start to the last one's end, with the costs of `options`, which need
// not be those that the plan was made with, and `transfer` for each transfer. A run begins when its
// rank is free and what it needs has arrived. A transfer begins when its content is made and the
// transfer before it of the same two ranks and direction has ended; ranks do not wait for it.
// Throws: std::invalid_argument for events that have faults.
int64_t replayed_span(const PipelinePlan& plan, const PipelineOptions& options, int64_t transfer);

}  // namespace ringside::sp
