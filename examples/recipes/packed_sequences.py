"""PyTorch's packed sequences: `lengths`, with no sorting and no packing."""

import numpy as np
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prnn_jax

module = torch.nn.GRU(8, 16, bidirectional=True, batch_first=True).eval()
x = np.random.default_rng(0).standard_normal((4, 10, 8)).astype(np.float32)
lengths = np.array([7, 10, 3, 5])

with torch.no_grad():
    packed = pack_padded_sequence(
        torch.from_numpy(x), torch.from_numpy(lengths), True, enforce_sorted=False
    )
    out, h_n = module(packed)
    wanted, _ = pad_packed_sequence(out, batch_first=True)

network = prnn_jax.convert.import_pytorch(module)
y, (h,) = network(x, lengths=lengths)
np.testing.assert_allclose(y, wanted, atol=1e-5)
np.testing.assert_allclose(h, h_n, atol=1e-5)  # of each row's own last step
print("outputs past the end are zero:", float(np.abs(y[2, 3:]).max()) == 0)
