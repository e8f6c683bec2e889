//! Decides how a child reacts to a command: the effect on the running epoch, and the time of the acknowledgment.

/// A command from the main process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Run the epoch with this number, and abandon any other running epoch.
    Epoch(u32),
    /// Recompute the last items of this epoch, which the main process already has, to restore the child's state.
    Repeat(u32),
    /// Between two items of the running epoch, call a function with the graph.
    Call,
    /// Exit.
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
    /// Run the epoch.
    Run(Acknowledged),
    /// Apply the function, acknowledge the command, then continue.
    Apply,
    /// Exit.
    End,
}

/// The time at which a child acknowledges the command to run an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Acknowledged {
    /// The child acknowledges before the first item.
    Begun,
    /// The child acknowledges after the last item of a repeated epoch, which has restored the child's state.
    Done,
    /// The dispatching process acknowledges before the first and after the last repeated item, so that workers
    /// meanwhile receive commands.
    Both,
}

/// Decides how a child reacts to commands.
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

    /// Returns what the child must do next for a command.
    pub fn obey(&mut self, command: Command) -> Step {
        match command {
            Command::Call => Step::Apply,
            _ if self.runs => Step::Leave,
            Command::Stop => Step::End,
            Command::Epoch(_) => self.run(Acknowledged::Begun),
            Command::Repeat(_) if self.dispatches => self.run(Acknowledged::Both),
            Command::Repeat(_) => self.run(Acknowledged::Done),
        }
    }

    fn run(&mut self, acknowledged: Acknowledged) -> Step {
        self.runs = true;
        Step::Run(acknowledged)
    }

    /// Records that the epoch has ended or has been abandoned.
    pub fn leave(&mut self) {
        self.runs = false;
    }

    /// Returns whether an epoch is running.
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

#[cfg(test)]
mod tests {
    use super::{Acknowledged, Command, Obedience, Step};

    #[test]
    fn an_epoch_or_the_end_leaves_the_epoch_that_runs_and_is_obeyed_behind_it() {
        let mut child = Obedience::new(false);
        assert_eq!(child.obey(Command::Epoch(1)), Step::Run(Acknowledged::Begun));
        for command in [Command::Epoch(2), Command::Repeat(1), Command::Stop] {
            assert_eq!(child.obey(command), Step::Leave);
            assert!(child.runs(), "until it is left");
        }
        child.leave();
        assert_eq!(child.obey(Command::Stop), Step::End);
    }

    #[test]
    fn a_repeated_epoch_is_acknowledged_when_it_is_done_and_by_a_dispatching_process_before_that_too() {
        let step = |dispatches| Obedience::new(dispatches).obey(Command::Repeat(1));
        assert_eq!([false, true].map(step), [Step::Run(Acknowledged::Done), Step::Run(Acknowledged::Both)]);
        assert_eq!(Obedience::new(true).obey(Command::Epoch(1)), Step::Run(Acknowledged::Begun));
    }

    #[test]
    fn epochs_and_the_end_are_ordered_ahead_and_only_later_ones_end_a_wait() {
        assert_eq!(Command::Call.order(), None);
        for epoch in [1, 2, u32::MAX] {
            let order = [Command::Epoch(epoch), Command::Repeat(epoch)].map(|command| command.order().unwrap());
            assert_eq!(order.map(|order| Obedience::is_superseded(epoch, order)), [false, false]);
            assert!(order.iter().all(|&order| Obedience::is_superseded(epoch - 1, order)));
            assert!(Obedience::is_superseded(epoch, Command::Stop.order().unwrap()));
        }
    }
}
