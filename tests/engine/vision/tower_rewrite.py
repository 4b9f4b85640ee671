"""The vision towers once more, in float64, from their description: the judge of engine/vision below float32.

transformers computes parts of its towers in float32 whatever the model's dtype. Here only what trained models expect in
float32 is so: angles of RoPE and weights of the interpolation. Windows are masks here, and no order of rows.
"""
import torch

F = torch.nn.functional


def _places(grids, merge: int):
    """Row and column of each patch, its frame, and its token's row and column."""
    places = []
    for frame, (height, width) in enumerate(grids):
        for top in range(0, height, merge):
            for left in range(0, width, merge):
                places += [(top + y, left + x, frame, top // merge, left // merge) for y in range(merge) for x in range(merge)]
    return torch.tensor(places)


def _angles(places: torch.Tensor, head_dim: int):
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, head_dim // 2, 2, dtype=torch.float) / (head_dim // 2)))
    angles = torch.cat([places[:, :1].float() * frequencies, places[:, 1:2].float() * frequencies], -1)
    return torch.cat([angles, angles], -1)[:, None]


def _turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * angles.cos().double() + torch.cat([-second, first], -1) * angles.sin().double()


def _table_rows(table: torch.Tensor, places: torch.Tensor, grids) -> torch.Tensor:
    side = round(len(table) ** 0.5)
    rows = []
    for y, x, frame, *_ in places.tolist():
        height, width = grids[frame]
        (top, down), (left, right) = ((int(at), at - int(at)) for at in (torch.linspace(0, side - 1, height)[y],
                                                                        torch.linspace(0, side - 1, width)[x]))
        lower, further = min(top + 1, side - 1), min(left + 1, side - 1)
        rows.append(((1 - down) * (1 - right)).double() * table[top * side + left]
                    + ((1 - down) * right).double() * table[top * side + further]
                    + (down * (1 - right)).double() * table[lower * side + left]
                    + (down * right).double() * table[lower * side + further])
    return torch.stack(rows)


class Tower:
    """tensors: of the tower, by their names behind its prefix, in float64. config: vision_config."""

    def __init__(self, family: str, tensors: dict[str, torch.Tensor], config):
        self.family, self.tensors, self.config = family, tensors, config

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"].flatten(1), self.tensors.get(f"{name}.bias"))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight = self.tensors[f"{name}.weight"]
        if self.family == "qwen2_5_vl":
            return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight + self.tensors[f"{name}.bias"]

    def _mask(self, block: int, places: torch.Tensor) -> torch.Tensor:
        keys = places[:, 2:3]
        if self.family == "qwen2_5_vl" and block not in self.config.fullatt_block_indexes:
            side = self.config.window_size // self.config.spatial_merge_size // self.config.patch_size
            keys = torch.cat([keys, places[:, 3:] // side], -1)
        return (keys[:, None] == keys[None]).all(-1)

    def _block(self, i: int, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        heads, name = self.config.num_heads, f"blocks.{i}"
        qkv = self._linear(f"{name}.attn.qkv", self._norm(f"{name}.norm1", x)).unflatten(-1, (3, heads, -1))
        q, k, v = qkv.unbind(1)
        angles = _angles(places, q.shape[-1])
        scores = torch.einsum("phd,qhd->hpq", _turn(q, angles), _turn(k, angles)) * q.shape[-1] ** -0.5
        shares = scores.masked_fill(~self._mask(i, places), -torch.inf).softmax(-1)
        x = x + self._linear(f"{name}.attn.proj", torch.einsum("hpq,qhd->phd", shares, v).flatten(1))
        return x + self._mlp(f"{name}.mlp", self._norm(f"{name}.norm2", x))

    def _mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if self.family == "qwen2_5_vl":
            gate = self._linear(f"{name}.gate_proj", x)
            return self._linear(f"{name}.down_proj", gate * gate.sigmoid() * self._linear(f"{name}.up_proj", x))
        if self.family == "qwen2_vl":
            up = self._linear(f"{name}.fc1", x)
            return self._linear(f"{name}.fc2", up * (1.702 * up).sigmoid())
        up = self._linear(f"{name}.linear_fc1", x)
        gelu = 0.5 * up * (1 + ((2 / torch.pi) ** 0.5 * (up + 0.044715 * up**3)).tanh())
        return self._linear(f"{name}.linear_fc2", gelu)

    def _merge(self, name: str, x: torch.Tensor, norm_of_tokens: bool) -> torch.Tensor:
        norm, first, second = (("ln_q", "mlp.0", "mlp.2") if self.family.startswith("qwen2") else
                               ("norm", "linear_fc1", "linear_fc2"))
        patches = self.config.spatial_merge_size**2
        join = lambda rows: rows.reshape(len(rows) // patches, -1)  # noqa: E731
        x = self._norm(f"{name}.{norm}", join(x)) if norm_of_tokens else join(self._norm(f"{name}.{norm}", x))
        x = self._linear(f"{name}.{first}", x)
        return self._linear(f"{name}.{second}", 0.5 * x * (1 + torch.erf(x / 2**0.5)))

    def encode(self, patches: torch.Tensor, grids) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Rows and deepstack rows. grids: height and width of each image in patches."""
        places = _places(grids, self.config.spatial_merge_size)
        x = self._linear("patch_embed.proj", patches)
        if "pos_embed.weight" in self.tensors:
            x = x + _table_rows(self.tensors["pos_embed.weight"], places, grids)
        deepstack = []
        for i in range(self.config.depth):
            x = self._block(i, x, places)
            if i in getattr(self.config, "deepstack_visual_indexes", ()):
                deepstack.append(self._merge(f"deepstack_merger_list.{len(deepstack)}", x, True))
        return self._merge("merger", x, False), deepstack
