"""Runs at the start of every Python process that this folder is on the path of.

vLLM inspects a model in a process of its own before it loads it. The cure must be there too, so vLLM itself stays as
released.
"""

from motet import compat

compat.torchvision()
