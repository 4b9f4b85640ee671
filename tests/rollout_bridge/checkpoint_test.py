"""ringside_bridge.checkpoint alone: which tensors must come before a server installs a version.

Guards: a server with a draft that refuses every version because the layers that predict further tokens do not come; one that
installs a version without a tensor of the model itself.
"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rollout_bridge" / "python"))
from ringside_bridge.checkpoint import check_layout, predicts_further, without_constants  # noqa: E402

LAYERS = 2
MODEL = {"model.embed_tokens.weight": (8, 4), "model.layers.0.a": (4,), "model.layers.1.a": (4,), "lm_head.weight": (8, 4)}
DRAFTS = ({"mtp.fc.weight": (4, 8), "mtp.layers.0.a": (4,)},
          {"model.layers.2.eh_proj.weight": (4, 8), "model.layers.2.embed_tokens.weight": (8, 4)})


class FurtherLayers(unittest.TestCase):
    def check(self, got, held):
        check_layout(got, without_constants(held, got, LAYERS), tied=False)

    def test_names_of_published_models(self):
        for name in ("mtp.norm.weight", "model.layers.2.enorm.weight", "model.layers.12.mlp.gate.weight"):
            self.assertTrue(predicts_further(name, LAYERS), name)
        for name in ("model.layers.1.mlp.gate.weight", "model.norm.weight", "lm_head.weight"):
            self.assertFalse(predicts_further(name, LAYERS), name)

    def test_constant_layers_need_not_come(self):
        for draft in DRAFTS:
            self.check(MODEL, MODEL | draft)
            self.check(MODEL | dict(list(draft.items())[:1]), MODEL | draft)

    def test_other_tensors_must_come(self):
        for draft in DRAFTS:
            for name in MODEL:
                with self.assertRaisesRegex(ValueError, f"tensor {name} of shape .* is missing"):
                    self.check({k: v for k, v in MODEL.items() if k != name}, MODEL | draft)

    def test_those_that_come_fit(self):
        for draft in DRAFTS:
            name = next(iter(draft))
            with self.assertRaisesRegex(ValueError, f"tensor {name} has shape"):
                self.check(MODEL | {name: (3, 3)}, MODEL | draft)
            with self.assertRaisesRegex(ValueError, f"tensor {name} is not in the model"):
                self.check(MODEL | {name: draft[name]}, MODEL)


if __name__ == "__main__":
    unittest.main()
