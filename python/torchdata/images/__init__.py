"""Decodes images: converts bytes, paths or open files to arrays or tensors, with optional cropping and resizing.

Role: pass the functions of this package to `map`, or call them in a dataset. The pipe that decodes images is
`.decode_image()`. If `simplejpeg` is installed, it decodes JPEG files, with the same pixels as Pillow. Pillow decodes
all other files. The native extension resizes images.
"""

from __future__ import annotations

from torchdata.images._boxes import center_crop, random_resized_crop
from torchdata.images._decoding import decode, decode_batch

__all__ = ["center_crop", "decode", "decode_batch", "random_resized_crop"]
