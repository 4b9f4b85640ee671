// The steps of the two ring forms: which rows move, and which blocks run on them. Parts of
// plan_attention.
#pragma once

#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// Fill plan.steps and plan.gradient_home, or plan.steps and plan.gather, from plan.ring_rank and
// plan.options.
void plan_p2p(AttentionPlan& plan, const SequenceLayout& layout);
void plan_all_gather(AttentionPlan& plan, const SequenceLayout& layout);

}  // namespace ringside::sp
