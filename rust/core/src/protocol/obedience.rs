//! Decides how a child process reacts to a command: what happens to the running epoch, and when the child acknowledges.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Run the epoch with this number, after abandoning any other running epoch.
    Epoch(u32),
    /// Recompute the last items of this epoch without sending them. The main process already has these items, so the
    /// command only restores the state of the child.
    Repeat(u32),
    /// Call a function with the graph, between two items of the running epoch.
    Call,
    Stop,
}

impl Command {
    /// Returns the value that announces the command in the control word `order`. Returns None for a call, because a
    /// call does not abandon the running epoch.
    pub fn order(self) -> Option<u64> {
        match self {
            Self::Epoch(epoch) | Self::Repeat(epoch) => Some(u64::from(epoch)),
            Self::Call => None,
            Self::Stop => Some(1 << 32),
        }
    }
}

/// The next step of a child process that has read a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Abandon the running epoch, and then execute the command.
    Leave,
    /// Run the epoch, and acknowledge the command at the given times.
    Run {
        /// Whether the child acknowledges the command before the first item.
        first: bool,
        /// Whether the child acknowledges the command after the last item, which is the case for a repeated epoch.
        last: bool,
    },
    /// Call the function, acknowledge the command, and continue the epoch.
    Apply,
    End,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Obedience {
    dispatches: bool,
    runs: bool,
}

impl Obedience {
    /// Creates the state of a child: a dispatching process if `dispatches` is true, or else a worker.
    pub fn new(dispatches: bool) -> Self {
        Self { dispatches, runs: false }
    }

    pub fn obey(&mut self, command: Command) -> Step {
        let step = match command {
            Command::Call => Step::Apply,
            _ if self.runs => Step::Leave,
            Command::Stop => Step::End,
            Command::Epoch(_) => Step::Run { first: true, last: false },
            // The main process sends this command to workers only after the dispatching process has acknowledged it.
            Command::Repeat(_) => Step::Run { first: self.dispatches, last: true },
        };
        self.runs |= matches!(step, Step::Run { .. });
        step
    }

    /// Records that the running epoch has ended or was abandoned.
    pub fn leave(&mut self) {
        self.runs = false;
    }

    pub fn runs(&self) -> bool {
        self.runs
    }

    /// Returns whether a child must stop working on `epoch`, because the main process has announced a stop or a later
    /// epoch in the control word `order`.
    #[inline]
    pub fn is_superseded(epoch: u32, order: u64) -> bool {
        order > u64::from(epoch)
    }
}
