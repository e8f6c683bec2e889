"""Pipes that are read by index."""

from torchdata.datapipes.datapipe import MapDataPipe

__all__ = ["MapDataPipe"]
