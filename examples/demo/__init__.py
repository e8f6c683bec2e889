"""A demonstration on real images: `make demo` (needs the extra `demo`).

Role: shows a whole pipeline, from tar shards on disk to a trained classifier, on the public API alone.
Importing this package loads nothing optional; what is needed is imported where it is used.
"""
