"""Displays of a loader: tables, pictures, notebooks, progress, words. The modules are imported only when they are
used."""
