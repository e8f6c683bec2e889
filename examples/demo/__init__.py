"""A demonstration with real images: `make demo` (needs the extra `demo`).

The demonstration shows a whole pipeline, from tar shards on disk to a trained classifier, with the public API only.
Importing this package does not import optional packages; they are imported where they are used.
"""
