"""Waiting and occupancy of a pool: pure functions of floats and arrays that know nothing of language models."""

import numpy as np

_LARGEST = (32 << 20) - 8192
"""Just below the size up to which glibc may learn to keep what is freed [bytes]."""

# once it has seen so large an array come back, glibc keeps freed ones for the next; until then those of a few hundred kilobytes, of
# which a formula makes dozens, come from the kernel anew, page by page, and an operation on them takes up to four times as long
np.empty(_LARGEST, dtype=np.uint8)
