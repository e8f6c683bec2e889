"""Views of a loader for people: tables, pictures, notebooks, progress, words. Imported when somebody looks."""
