// Steps of the two ring forms: rows sent, and blocks computed on them. Parts of plan_attention.
#pragma once

#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// Both read plan.ring_rank and plan.options. plan_p2p fills plan.steps and plan.gradient_home;
// plan_all_gather fills plan.steps and plan.gather.
void plan_p2p(AttentionPlan& plan, const SequenceLayout& layout);
void plan_all_gather(AttentionPlan& plan, const SequenceLayout& layout);

}  // namespace ringside::sp
