"""Parts of ringside_bridge.hf_server without the server: how a token is drawn, and a model with learned positions.

Guards: tokens of probability 0, draws that are off by one, positions past the last one.
"""

import tempfile
import unittest

import numpy as np
import torch
import transformers

import tiny_models
from hf_server import distribution  # puts ringside_bridge on the path as well

from ringside_bridge import hf_model


class Sampling(unittest.TestCase):
    def test_inverse_cdf_hits_every_token_as_often_as_it_should(self):
        shares = torch.tensor([0.0, 0.125, 0.0, 0.5, 0.25, 0.125, 0.0], dtype=torch.float64)
        uniform = (torch.arange(8, dtype=torch.float64) + 0.5) / 8
        picked = hf_model.inverse_cdf(shares.log().expand(8, -1), uniform)
        self.assertEqual(picked.tolist(), [1, 3, 3, 3, 3, 4, 4, 5])
        self.assertEqual(hf_model.inverse_cdf(shares.log()[None], torch.zeros(1, dtype=torch.float64)).tolist(), [1])
        last = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
        for seed in range(200):
            rows = torch.randn(1, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3
            rows[0, 40:] = -torch.inf
            self.assertLess(int(hf_model.inverse_cdf(rows.log_softmax(1), last)), 40)

    def test_learned_positions(self):
        """Another kind of model, up to its last position, beside a row that ends long before."""
        config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=48, bos_token_id=0,
                                         eos_token_id=1)
        model = tiny_models.make_model(config, 3)
        with tempfile.TemporaryDirectory() as name:
            model.save_pretrained(name)
            served = hf_model.HfModel(name)
            requests = [hf_model.Request(list(range(2, 42)), 8, seed=1, top_k=90),
                        hf_model.Request([5, 6], 30, seed=4, top_k=90)]
            for request, result in zip(requests, served.generate(requests)):
                ids = result["completion_ids"]
                shares = distribution(model, request.prompt_ids, ids, top_k=90)[range(len(ids)), ids]
                np.testing.assert_allclose(result["logprobs"], np.log(shares), atol=2e-5)
            with self.assertRaisesRegex(ValueError, "49 tokens.*48 positions"):
                served.generate([hf_model.Request(list(range(2, 42)), 9)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
