"""Child processes, independent of their programs: how they start, what they inherit from the main process, and how they
end. Private.
"""
