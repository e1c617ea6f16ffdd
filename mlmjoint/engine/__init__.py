"""Speed and nothing else: the forward pass through a transformer and passes over V x V tables."""

import torch

# glibc returns freed memory to the system beyond twice the largest block that it has seen freed,
# and the next batch or tile then waits for every page again. A block of 32 MB is the largest that
# it heeds. It is never written to.
torch.empty(2**23 - 2**12)
