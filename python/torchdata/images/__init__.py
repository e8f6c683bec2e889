"""Decodes images: converts bytes, paths or open files to arrays or tensors, with optional cropping and resizing.

Role: functions to pass to `map` or to call in a dataset, whereas `.decode_image()` is a pipe. If `simplejpeg` is
installed, it decodes JPEG files, with the same pixels as Pillow. Pillow decodes all other files. The native extension
resizes images.
"""

from __future__ import annotations

from torchdata.images._boxes import center_crop, random_resized_crop
from torchdata.images._decoding import decode, decode_batch

__all__ = ["center_crop", "decode", "decode_batch", "random_resized_crop"]
