"""The artifact: the folder that goes with a paper, and its check.

layout.py     where things stand in it
subject.py    the image that is pinned, its lock, a way to come by its layers
inputs.py     the inputs of a lock as files
imagefile.py  the image as one archive, written and read in a stream; targets.py: as one file, in parts, compressed
scan.py       what the layers hold; licences.py: what packages say of their licences
record.py, sbom.py, packages.py, citation.py, crate.py, pages.py     the texts
writing.py    writes it all; seal.py: its checksums
check.py      tests it, offline; rebuild.py: makes the image again from it, or loads and verifies it
push.py       the image into a registry
"""

from envlock.artifact.subject import Subject, subject_of
from envlock.artifact.writing import Choices, Pinned, pin

__all__ = ["Choices", "Pinned", "Subject", "pin", "subject_of"]
