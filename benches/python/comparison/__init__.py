"""The end-to-end comparison after `compare.py`: every contender is a child process, `python -m comparison.child`.

`workloads` says what is measured and which goals stand; `items` makes the data, `pipes` (this project and
upstream: one API), `torch_loader` and `bare` are the contenders; `measure` holds the clocks; `environment`,
`memory` and `report` serve the harness. Nothing here is imported by a contender that does not need it.
"""
