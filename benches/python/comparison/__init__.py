"""The end-to-end comparison of `compare.py`: every contender is a child process, `python -m comparison.child`.

`workloads` defines the measurements and their goals, and `items` creates the data. The contenders are in `pipes` (this
project and upstream, which share an API), `torch_loader` and `bare`.
"""
