"""Displays of a loader: tables, pictures, notebooks, progress, words. The modules of this package are imported only
when they are used."""
