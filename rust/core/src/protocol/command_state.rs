//! Decides how a child process reacts to a command, and when the child acknowledges the command.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Abandon any running epoch, and run the epoch with this number.
    Epoch(u32),
    /// Recompute the last items of the epoch with this number without sending them, to restore a child's state.
    Repeat(u32),
    /// Call a function with the graph as its argument, between two items of the running epoch.
    Call,
    Stop,
}

impl Command {
    /// Returns the control word that announces the command, or None for a call.
    pub fn order(self) -> Option<u64> {
        match self {
            Self::Epoch(epoch) | Self::Repeat(epoch) => Some(u64::from(epoch)),
            Self::Call => None,
            Self::Stop => Some(1 << 32),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Abandon the running epoch, and execute the command afterwards.
    Leave,
    Run {
        /// Whether the child acknowledges the command before it computes the first item.
        first: bool,
        /// Whether the child acknowledges the command after it has computed the last item.
        last: bool,
    },
    Apply,
    End,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CommandState {
    dispatches: bool,
    runs: bool,
}

impl CommandState {
    pub fn new(dispatches: bool) -> Self {
        Self { dispatches, runs: false }
    }

    pub fn accept(&mut self, command: Command) -> Step {
        let step = match command {
            Command::Call => Step::Apply,
            _ if self.runs => Step::Leave,
            Command::Stop => Step::End,
            Command::Epoch(_) => Step::Run { first: true, last: false },
            // The dispatching process acknowledges `Repeat` immediately, because the main process waits for this
            // acknowledgment before it sends `Repeat` to the workers.
            Command::Repeat(_) => Step::Run { first: self.dispatches, last: true },
        };
        self.runs |= matches!(step, Step::Run { .. });
        step
    }

    pub fn leave(&mut self) {
        self.runs = false;
    }

    pub fn runs(&self) -> bool {
        self.runs
    }

    /// Returns whether a child must stop working on `epoch`, because the main process has announced a stop or a later
    /// epoch.
    #[inline]
    pub fn is_superseded(epoch: u32, order: u64) -> bool {
        order > u64::from(epoch)
    }
}
