//! The obedience of a child: what a command does to the epoch that runs, and when it is acknowledged.

/// A command of main.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Run the epoch of this number; the epoch that runs is given up.
    Epoch(u32),
    /// Run the rest of this epoch once more, for what outlives it. Main has all its items.
    Repeat(u32),
    /// Apply the function of this number to the graph, between two items; the epoch that runs goes on. Functions count
    /// from 1 and may come twice. Number 0 asks for the acknowledgement alone.
    Call(u64),
    /// End.
    Stop,
}

impl Command {
    /// The word that main orders before it sends the command; None if the command gives no epoch up.
    pub fn order(self) -> Option<u64> {
        match self {
            Self::Epoch(epoch) | Self::Repeat(epoch) => Some(u64::from(epoch)),
            Self::Call(_) => None,
            Self::Stop => Some(1 << 32),
        }
    }
}

/// The step that a child takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Leave the epoch that runs. The command is obeyed behind it.
    Leave,
    /// Run the epoch.
    Run(Acknowledged),
    /// Apply the function, then acknowledge the command; go on where the child was.
    Apply,
    /// Acknowledge the command, as its function was applied before; go on where the child was.
    Skip,
    /// End the process.
    End,
}

/// When a child acknowledges an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Acknowledged {
    /// Before its first item.
    Begun,
    /// Behind its last item: main waits for what outlives the epoch.
    Done,
    /// At both moments: a dispatching process comes to the end of an epoch only if its readers do, which main tells
    /// next.
    Both,
}

/// The state of a child as far as commands go. Commands are taken between two items, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Obedience {
    dispatches: bool,
    runs: bool,
    /// The latest function that was applied, or that the child applies by itself later in this run.
    applied: u64,
}

impl Obedience {
    /// The obedience of a worker, or of a dispatching process.
    pub fn new(dispatches: bool) -> Self {
        Self { dispatches, runs: false, applied: 0 }
    }

    /// The step that a command asks for.
    pub fn obey(&mut self, command: Command) -> Step {
        match command {
            Command::Call(number) if number > self.applied => {
                self.applied = number;
                Step::Apply
            }
            Command::Call(_) => Step::Skip,
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

    /// Notes that the epoch is over, or was left.
    pub fn leave(&mut self) {
        self.runs = false;
    }

    /// Notes functions, up to this number, that came with the epoch: the child applies them if the process before it
    /// did.
    pub fn expect(&mut self, number: u64) {
        self.applied = self.applied.max(number);
    }

    /// Whether an epoch runs.
    pub fn runs(&self) -> bool {
        self.runs
    }

    /// Whether a wait inside the graph, in the middle of an item of `epoch`, is in vain: main has ordered a later
    /// epoch, or the end. A call does not end the wait: the item is made first.
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
    fn a_call_leaves_the_epoch_running_and_is_applied_once() {
        let mut child = Obedience::new(false);
        assert_eq!(child.obey(Command::Call(0)), Step::Skip, "it asks for the acknowledgement alone");
        assert_eq!(child.obey(Command::Call(1)), Step::Apply);
        child.obey(Command::Epoch(1));
        assert_eq!(
            [1, 2, 2, 1].map(|number| child.obey(Command::Call(number))),
            [Step::Skip, Step::Apply, Step::Skip, Step::Skip]
        );
        assert!(child.runs());
    }

    #[test]
    fn functions_that_come_with_an_epoch_are_not_applied_when_they_are_called() {
        let mut child = Obedience::new(false);
        child.obey(Command::Call(1));
        child.expect(3);
        child.expect(2);
        assert_eq!([3, 4].map(|number| child.obey(Command::Call(number))), [Step::Skip, Step::Apply]);
    }

    #[test]
    fn a_repeated_epoch_is_acknowledged_when_it_is_done_and_by_a_dispatching_process_before_that_too() {
        let step = |dispatches| Obedience::new(dispatches).obey(Command::Repeat(1));
        assert_eq!([false, true].map(step), [Step::Run(Acknowledged::Done), Step::Run(Acknowledged::Both)]);
        assert_eq!(Obedience::new(true).obey(Command::Epoch(1)), Step::Run(Acknowledged::Begun));
    }

    #[test]
    fn epochs_and_the_end_are_ordered_ahead_and_only_later_ones_end_a_wait() {
        assert_eq!(Command::Call(9).order(), None);
        for epoch in [1, 2, u32::MAX] {
            let order = [Command::Epoch(epoch), Command::Repeat(epoch)].map(|command| command.order().unwrap());
            assert_eq!(order.map(|order| Obedience::is_superseded(epoch, order)), [false, false]);
            assert!(order.iter().all(|&order| Obedience::is_superseded(epoch - 1, order)));
            assert!(Obedience::is_superseded(epoch, Command::Stop.order().unwrap()));
        }
    }
}
