"""Shared by all tests: one thread for each process, and no model hub."""

import os

# Set before torch is imported: pytest-xdist runs one process for each core already.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
