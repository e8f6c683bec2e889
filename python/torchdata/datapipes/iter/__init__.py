"""Pipes that are read by iterating."""

from torchdata.datapipes.datapipe import IterDataPipe

__all__ = ["IterDataPipe"]
