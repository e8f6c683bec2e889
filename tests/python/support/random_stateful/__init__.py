"""Random programs over `StatefulDataLoader`. Each program stops, restarts in another process, and resumes.

Each program runs in three processes: one runs all epochs, one saves a state and stops, and one resumes from this state
and runs three more epochs. The resumed program must yield the same batches as the uninterrupted program. `programs`
creates programs from seeds, `running` runs a program in a process, and `judging` compares the runs. The modules of
this package need only torch, NumPy and any version of torchdata, so that two versions can be compared."""
