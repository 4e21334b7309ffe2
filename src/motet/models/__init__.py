"""Model families. Importing anything here makes transformers importable first."""

from motet import compat

compat.torchvision()
