"""Decoding of images: bytes, paths or open files become arrays or tensors, cut, resized and laid out on the way.

Role: functions that any `map` and any dataset may call; `.decode_image()` is their pipe. JPEG files are decoded by
`simplejpeg`, all others, and all where it is not installed, by Pillow, with the same pixels. The extension resizes.
Runs in whichever process and thread calls; each thread keeps one buffer for the next image.
"""

from __future__ import annotations

from torchdata.images._boxes import center_crop, random_resized_crop
from torchdata.images._decoding import decode, decode_batch

__all__ = ["center_crop", "decode", "decode_batch", "random_resized_crop"]
