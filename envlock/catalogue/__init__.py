"""What fits together: torch builds, CUDA, drivers, GPUs, as data files with a source for every row, and the rules to ask them by."""

from envlock.catalogue.loader import Catalogue, load, parse

__all__ = ["Catalogue", "load", "parse"]
