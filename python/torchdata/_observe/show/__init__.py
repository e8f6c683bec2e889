"""Displays of a loader: tables, pictures, notebooks, progress, words. Imported only when they are used."""
