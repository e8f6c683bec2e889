//! Converts the counters of a process from shared memory to values, which are named after the fields in `layout`.

use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};

use super::board::{Board, PageRef, Role};
use super::layout::{Flow, PipeRecord, STEPS, Wait, middle_of, read_text};

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Nothing,
    Flag(bool),
    Number(u64),
    /// A duration in nanoseconds that was estimated from samples.
    Estimate(f64),
    Text(String),
    List(Vec<Self>),
    Fields(Vec<(&'static str, Self)>),
}

macro_rules! from {
    ($($type:ty: $one:ident => $value:expr),+ $(,)?) => {
        $(impl From<$type> for Value {
            fn from($one: $type) -> Self {
                $value
            }
        })+
    };
}

from!(
    bool: one => Self::Flag(one),
    u32: one => Self::Number(one.into()),
    u64: one => Self::Number(one),
    f64: one => Self::Estimate(one),
    String: one => Self::Text(one),
);

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(one: Option<T>) -> Self {
        one.map_or(Self::Nothing, Into::into)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(list: Vec<T>) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

macro_rules! fields {
    (@value $of:ident $name:ident) => { Value::from($of.$name.load(Relaxed)) };
    (@value $of:ident $name:ident $value:expr) => { Value::from($value) };
    ($of:ident: $($name:ident $(= $value:expr)?),+ $(,)?) => {
        Value::Fields(vec![$((stringify!($name), fields!(@value $of $name $($value)?))),+])
    };
}

impl Board {
    pub fn read(self: &Arc<Self>) -> Vec<Value> {
        self.pages().filter_map(|page| page.read().ok().flatten()).collect()
    }

    /// Describes the first page with values that this version of torchdata never writes.
    pub fn damage(self: &Arc<Self>) -> Option<String> {
        self.pages().find_map(|page| page.counted_pipes().err())
    }

    fn pages(self: &Arc<Self>) -> impl Iterator<Item = PageRef> + '_ {
        (0..self.config.pages as usize).filter_map(|index| self.page(index))
    }
}

impl PageRef {
    fn counted_pipes(&self) -> Result<Option<usize>, String> {
        let refuse = |what| Err(format!("page {} of the counters {what}", self.index));
        let role = self.header().role.load(Relaxed);
        if role == 0 {
            return Ok(None);
        }
        if role > Role::Dispatcher as u32 {
            return refuse("contains a process with an unknown role");
        }
        // SYNC(pipes): pairs with PageRef::set_pipes.
        let pipes = self.header().pipes.load(Ordering::Acquire);
        if pipes > self.board.config.pipes {
            return refuse("counts more pipes than its capacity");
        }
        Ok(Some(pipes as usize))
    }

    fn read(&self) -> Result<Option<Value>, String> {
        let Some(pipes) = self.counted_pipes()? else { return Ok(None) };
        let header = self.header();
        let ([role, pid, number], began) = header.sequence.read(|| {
            let numbers = [&header.role, &header.pid, &header.number].map(|word| word.load(Relaxed));
            (numbers, header.began.load(Relaxed))
        });
        // SYNC(stack): pairs with PageRef::set_stack.
        let signal = header.signal.load(Ordering::Acquire);
        let pipes = (0..pipes).filter_map(|index| self.record_at(index));
        let flows = (0..self.board.config.flows as usize).map_while(|index| self.flow_at(index));
        let used = flows.take_while(|flow| flow.direction.load(Relaxed) != 0);
        Ok(Some(fields!(
            header: page = self.index as u64, role = role, pid = pid, number = number, began = began, epoch, current,
            signal = signal, stack, restarts, snapshots, inside, inside_samples,
            exited = header.exited.load(Relaxed) != 0, arrived, ran, queued, lived,
            carried, machine = read_text(&header.machine), all_pipes, idle = wait(&header.idle),
            first = wait(&header.first), span = wait(&header.span),
            flows = used.map(flow).collect::<Vec<_>>(), pipes = pipes.map(pipe).collect::<Vec<_>>(),
        )))
    }
}

fn wait(wait: &Wait) -> Value {
    let (whom, since, total, count) = wait.read();
    fields!(wait: whom = whom, since = since, total = total, count = count)
}

fn flow(flow: &Flow) -> Value {
    // SYNC(used): pairs with Allocator::mirror. A reader that sees a new `arena_used` also sees the new `arena_peak`,
    // which the writer has stored before.
    let used = flow.arena_used.load(Ordering::Acquire);
    fields!(
        flow: peer, sends = flow.direction.load(Relaxed) == 1, items, bytes, fragments, wakes, copies, copied,
        wait = wait(&flow.wait), arena_used = used, arena_peak, arena_capacity, window,
    )
}

fn pipe(record: &PipeRecord) -> Value {
    let (yielded, base) = record.sequence.read(|| (record.yielded.load(Relaxed), record.base.load(Relaxed)));
    let samples = record.samples.load(Relaxed);
    let kinds = record.skipped_kinds().into_iter();
    let kinds: Vec<_> = kinds.map(|(kind, count)| Value::List(vec![kind.into(), count.into()])).collect();
    let counts: [u64; STEPS] = std::array::from_fn(|step| u64::from(record.histogram[step].load(Relaxed)));
    fields!(
        record: label = read_text(&record.label), location = read_text(&record.location),
        reader = record.reader.load(Relaxed).checked_sub(1), flags, capacity, yielded = yielded,
        items = yielded.wrapping_add(base as u64), samples = samples, own, skipped, retries,
        skipped_kinds = kinds,
        quantiles = (samples > 0).then(|| vec![quantile(&counts, 0.5), quantile(&counts, 0.99)]),
    )
}

fn quantile(counts: &[u64; STEPS], which: f64) -> f64 {
    let wanted = (counts.iter().sum::<u64>() as f64 * which).ceil().max(1.0);
    let mut seen = 0;
    let step = counts.iter().position(|&count| {
        seen += count;
        seen as f64 >= wanted
    });
    middle_of(step.unwrap_or(0))
}
