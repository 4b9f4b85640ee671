"""transformers' gated delta nets in the model's own dtype, for comparisons in float64."""
from unittest import mock

import torch


def delta_rule_in_own_dtype(query, key, value, g, beta, initial_state=None, output_final_state=False,
                            use_qk_l2norm_in_kernel=False, **_):
    """The gated delta rule row by row. transformers' own computes it in float32 whatever the model's dtype."""
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    query = query * query.shape[-1] ** -0.5
    state = query.new_zeros(query.shape[0], query.shape[2], key.shape[-1], value.shape[-1])
    if initial_state is not None:
        state = initial_state.to(state.dtype)
    rows = []
    for t in range(query.shape[1]):
        state = state * g[:, t].exp()[..., None, None].to(state.dtype)
        read = (state * key[:, t, :, :, None]).sum(-2)
        state = state + key[:, t, :, :, None] * (beta[:, t, :, None] * (value[:, t] - read))[:, :, None]
        rows.append((state * query[:, t, :, :, None]).sum(-2))
    return torch.stack(rows, 1), state if output_final_state else None


_float = torch.Tensor.float


def float_unless_double(self):
    """In place of Tensor.float, with which transformers rounds the delta net's decays of float64 models too."""
    return self if self.dtype == torch.float64 else _float(self)


def compute_delta_nets_in_own_dtype(model) -> None:
    for module in model.modules():
        if hasattr(module, "chunk_gated_delta_rule"):
            module.chunk_gated_delta_rule = module.recurrent_gated_delta_rule = delta_rule_in_own_dtype
            module.forward = mock.patch.object(torch.Tensor, "float", float_unless_double)(module.forward)
