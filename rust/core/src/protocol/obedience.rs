//! Decides how a child reacts to a command: the effect on the running epoch, and the time of the acknowledgment.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Run the epoch with this number, and abandon any other running epoch.
    Epoch(u32),
    /// Recompute the last items of this epoch, which the main process already has, to restore the child's state.
    Repeat(u32),
    /// Between two items of the running epoch, call a function with the graph.
    Call,
    Stop,
}

impl Command {
    /// Returns the value of the control word `order` for this command, or None for a call, which abandons no epoch.
    pub fn order(self) -> Option<u64> {
        match self {
            Self::Epoch(epoch) | Self::Repeat(epoch) => Some(u64::from(epoch)),
            Self::Call => None,
            Self::Stop => Some(1 << 32),
        }
    }
}

/// The next step of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Abandon the running epoch, then execute the command.
    Leave,
    /// Run the epoch, and acknowledge the command at these times.
    Run {
        /// Whether to acknowledge the command before the first item.
        first: bool,
        /// Whether to acknowledge the command after the last item of a repeated epoch.
        last: bool,
    },
    /// Apply the function, acknowledge the command, then continue.
    Apply,
    End,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Obedience {
    dispatches: bool,
    runs: bool,
}

impl Obedience {
    /// Creates the state of a worker, or, if `dispatches` is true, of a dispatching process.
    pub fn new(dispatches: bool) -> Self {
        Self { dispatches, runs: false }
    }

    pub fn obey(&mut self, command: Command) -> Step {
        let step = match command {
            Command::Call => Step::Apply,
            _ if self.runs => Step::Leave,
            Command::Stop => Step::End,
            Command::Epoch(_) => Step::Run { first: true, last: false },
            // Workers receive their commands only after the dispatching process has acknowledged its command.
            Command::Repeat(_) => Step::Run { first: self.dispatches, last: true },
        };
        self.runs |= matches!(step, Step::Run { .. });
        step
    }

    /// Records that the epoch has ended or has been abandoned.
    pub fn leave(&mut self) {
        self.runs = false;
    }

    pub fn runs(&self) -> bool {
        self.runs
    }

    /// Returns whether the child must stop working on `epoch`, because the main process has ordered a later epoch or a
    /// stop.
    #[inline]
    pub fn is_superseded(epoch: u32, order: u64) -> bool {
        order > u64::from(epoch)
    }
}
