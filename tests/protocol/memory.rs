//! Models shared memory: the messages and header fields of links, and the state of the two ends of a link.

use std::collections::VecDeque;

use torchdata_core::protocol::{
    Account, Dispatch, Dispatched, Grant, Judgement, Permit, Receiving, Sending, Snapshot, Stream,
};

use super::saving::Graph;
use super::shared::Part;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    Item(u32, u8),
    End,
    Error,
    Saved(Part<Snapshot<Graph>>),
    Dispatched(Part<Dispatched<Graph>>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unit {
    pub stream: Stream,
    pub kind: Kind,
}

impl Unit {
    pub fn item(&self) -> Option<(u32, u8)> {
        if let Kind::Item(epoch, item) = self.kind { Some((epoch, item)) } else { None }
    }
}

#[derive(Debug, Clone, Hash)]
pub struct Link {
    pub units: VecDeque<Unit>,
    /// The `Grant` of the link's reader, which permits the link's writer to send `count` items.
    pub grant: u64,
    pub count: u32,
    /// The worker's epoch if the worker is waiting for a dispatched item, or else 0.
    pub starving: u32,
}

impl Link {
    pub fn new() -> Self {
        Self { units: VecDeque::new(), grant: Grant::NONE, count: 0, starving: 0 }
    }
}

#[derive(Debug, Clone, Hash, Default)]
pub struct ReadEnd {
    pub receiving: Receiving,
    pub taken: u32,
}

impl ReadEnd {
    pub fn announce(&self, link: &mut Link, grant: Grant, extra: u64) {
        link.grant = grant.word();
        link.count = self.taken + extra as u32;
    }

    pub fn begin(&mut self, link: &mut Link, stream: Stream, window: u64) {
        self.taken = 0;
        let grant = self.receiving.begin(stream, window);
        self.announce(link, grant, window);
    }

    pub fn set_window(&mut self, link: &mut Link, window: u64) {
        let grant = self.receiving.set_window(window);
        self.announce(link, grant, window);
    }

    pub fn took(&mut self, link: &mut Link) {
        self.taken += 1;
        let grant = self.receiving.take();
        self.announce(link, grant, self.receiving.window());
    }

    pub fn took_in(&mut self, link: &mut Link) {
        self.taken += 1;
        self.receiving.take();
        self.announce(link, self.receiving.one_more(), self.receiving.window().max(1));
    }

    pub fn glance(&self, link: &Link) -> Option<bool> {
        match self.receiving.judge(link.units.front().map_or(self.receiving.stream(), |unit| unit.stream)) {
            Judgement::Take => Some(!link.units.is_empty()),
            Judgement::Leave => Some(false),
            Judgement::Drop => None,
        }
    }

    pub fn look(&self, link: &mut Link) -> bool {
        while let Some(unit) = link.units.front() {
            match self.receiving.judge(unit.stream) {
                Judgement::Take => return true,
                Judgement::Leave => return false,
                Judgement::Drop => drop(link.units.pop_front()),
            }
        }
        false
    }
}

#[derive(Debug, Clone, Hash)]
pub struct Pump {
    pub dispatch: Part<Dispatch>,
    pub sending: Vec<Sending>,
    pub departing: Option<(usize, Unit)>,
    pub ending: bool,
    /// For each link, the number and the checksum of the items that were sent in the current epoch.
    pub accounts: Part<Vec<Account>>,
    /// For each link, the expected checksum of the items that the child recomputes.
    pub expected: Part<Vec<Option<u64>>>,
}

impl Pump {
    pub fn new(links: usize) -> Self {
        Self {
            dispatch: Dispatch::new(links).into(),
            sending: vec![Sending::default(); links],
            departing: None,
            ending: false,
            accounts: vec![Account::default(); links].into(),
            expected: vec![None; links].into(),
        }
    }

    pub fn begin(&mut self, stream: Stream) {
        self.sending.iter_mut().for_each(|sending| sending.begin(stream));
        self.departing = None;
        self.ending = false;
        self.accounts.fill(Account::default());
        self.expected.fill(None);
    }

    pub fn stream(&self) -> Stream {
        self.sending[0].stream()
    }
}

pub fn permit(heavy: bool, sending: &mut Sending, link: &Link) -> Permit {
    let is_ahead = |unit: &Unit| matches!(unit.kind, Kind::Item(..)) && unit.stream == sending.stream();
    if heavy && link.units.iter().any(is_ahead) {
        return sending.permit_far_ahead(link.grant).expect("this model has no damage");
    }
    sending.permit(link.grant).expect("this model has no damage")
}
