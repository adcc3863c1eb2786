"""envlock: CUDA/PyTorch container images that rebuild bit for bit, and proof that they compute the same bits.

This file ships inside images too, so it imports nothing.
"""

__version__ = "0.1.0"
