"""Loaders whose processes are killed, stopped and interrupted at random moments, judged from outside.

    python -m chaos --seconds 600 --seed 1      # in tests/python/support; runs seeds 1, 2, 3, …
    python -m chaos --seed 17 --runs 1          # one of them again

`plans` draws what is done to whom and when, `main` is the program that it is done to, `drive` starts that program, does
it, and judges what came of it.
"""
