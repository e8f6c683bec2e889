//! A child's obedience: what a command does to the epoch that runs.

/// What main commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Run the epoch of this number; the one that runs is given up.
    Epoch(u32),
    /// Apply a function to the graph, between two items; the epoch that runs goes on.
    Call,
    /// End.
    Stop,
}

/// What the child does about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Begin this epoch from its start.
    Begin(u32),
    /// Apply the function, then go on where it was.
    ApplyAndGoOn,
    /// End the process.
    End,
}

/// How a child obeys. Commands are taken between two items, and acknowledged once the step is done: an epoch once it has
/// begun, a call once the function has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Control;

impl Control {
    /// What to do about a command.
    pub fn obey(command: Command) -> Step {
        match command {
            Command::Epoch(epoch) => Step::Begin(epoch),
            Command::Call => Step::ApplyAndGoOn,
            Command::Stop => Step::End,
        }
    }

    /// Whether a wait inside the graph, in the middle of an item of `epoch`, is in vain: main has ordered a later epoch, or the
    /// end. A call does not end it: the item is made first.
    #[inline]
    pub fn is_superseded(epoch: u32, order: u64) -> bool {
        order > u64::from(epoch)
    }

    /// What main orders before it sends a command; None where the command does not end an epoch.
    pub fn order_of(command: Command) -> Option<u64> {
        match command {
            Command::Epoch(epoch) => Some(u64::from(epoch)),
            Command::Call => None,
            Command::Stop => Some(1 << 32),
        }
    }
}
