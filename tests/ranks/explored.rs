//! Explores all orders of events in a job of a few ranks. At any step, one of the ranks can fail.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use torchdata_core::ranks::hub::Hub;
use torchdata_core::ranks::member::Member;
use torchdata_core::ranks::message::Message;
use torchdata_core::ranks::{Answer, Fault, WATCH};

/// The number of operations that each rank runs after the first operation.
const OPERATIONS: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Harm {
    None,
    /// The process of the rank exits, so its connections break.
    Exits,
    /// The process of the rank is stopped, so it neither sends heartbeats nor receives messages.
    Stops,
    /// The program of the rank never starts the next operation, but its process still sends heartbeats.
    Hangs,
    Parts,
    Leaves,
}

#[derive(Clone, Hash, PartialEq, Eq)]
struct Rank {
    waits: Option<u64>,
    ended: Vec<i64>,
    failed: Option<Answer>,
    time_is_up: bool,
}

#[derive(Clone)]
struct Job {
    hub: Hub,
    members: Vec<Member>,
    ranks: Vec<Rank>,
    /// The messages on their way between rank 0 and each other rank: to rank 0 (`up`), and from rank 0 (`down`).
    up: Vec<VecDeque<Message>>,
    down: Vec<VecDeque<Message>>,
    up_ends: Vec<bool>,
    down_ends: Vec<bool>,
    exited: Vec<bool>,
    harmed: bool,
    now: Instant,
    ticks: u32,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Submit(usize),
    ToHub(usize),
    ToMember(usize),
    Harm,
    /// The program of a rank exits because an operation has failed.
    Exit(usize),
    TimePasses,
}

pub struct Explorer {
    pub size: usize,
    pub victim: usize,
    pub harm: Harm,
    start: Instant,
}

impl Explorer {
    pub fn new(size: usize, victim: usize, harm: Harm) -> Self {
        Self { size, victim, harm, start: Instant::now() }
    }

    /// Explores all orders of events, and returns the number of visited states.
    pub fn run(&self) -> usize {
        let mut seen = HashSet::new();
        let mut open = vec![self.begin()];
        while let Some(job) = open.pop() {
            if !seen.insert(self.key(&job)) {
                continue;
            }
            let steps = self.steps(&job);
            if steps.is_empty() {
                self.check_end(&job);
            }
            for step in steps {
                let mut next = job.clone();
                self.take(&mut next, step);
                self.check_always(&next);
                open.push(next);
            }
        }
        seen.len()
    }

    fn begin(&self) -> Job {
        let mut hub = Hub::new(self.size as u32);
        hub.submit(0);
        let rank = Rank { waits: Some(0), ended: Vec::new(), failed: None, time_is_up: false };
        let members = (1..self.size as u32).map(Member::new).collect();
        let mut job = Job {
            hub,
            members,
            ranks: vec![rank; self.size],
            up: vec![VecDeque::new(); self.size],
            down: vec![VecDeque::new(); self.size],
            up_ends: vec![false; self.size],
            down_ends: vec![false; self.size],
            exited: vec![false; self.size],
            harmed: self.harm == Harm::None,
            now: self.start,
            ticks: 0,
        };
        for rank in 1..self.size {
            job.hub.admit(rank as u32);
            job.members[rank - 1].beat();
        }
        job.hub.beat();
        self.deliver(&mut job);
        job
    }

    fn key(&self, job: &Job) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (&job.hub, &job.members, &job.ranks, &job.up, &job.down).hash(&mut hasher);
        (&job.up_ends, &job.down_ends, &job.exited, job.harmed, job.now, job.ticks).hash(&mut hasher);
        hasher.finish()
    }

    fn is_stopped(&self, job: &Job, rank: usize) -> bool {
        job.exited[rank] || (job.harmed && rank == self.victim && self.harm == Harm::Stops)
    }

    fn idle(&self, job: &Job, rank: usize) -> bool {
        job.harmed && rank == self.victim && self.harm != Harm::None
    }

    fn steps(&self, job: &Job) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, rank) in job.ranks.iter().enumerate() {
            let continues = rank.waits.is_none() && rank.failed.is_none() && rank.ended.len() as u64 <= OPERATIONS;
            if continues && !self.idle(job, number) {
                steps.push(Step::Submit(number));
            }
            if rank.failed.is_some() && !job.exited[number] && !self.is_stopped(job, number) {
                steps.push(Step::Exit(number));
            }
        }
        for member in 1..self.size {
            let to_hub = !job.up[member].is_empty() || job.up_ends[member];
            if to_hub && !self.is_stopped(job, 0) {
                steps.push(Step::ToHub(member));
            }
            let to_member = !job.down[member].is_empty() || job.down_ends[member];
            if to_member && !self.is_stopped(job, member) {
                steps.push(Step::ToMember(member));
            }
        }
        if !job.harmed {
            steps.push(Step::Harm);
        }
        // Every step is much shorter than the timeout, so time passes only if no other step is possible.
        let wait = job
            .ranks
            .iter()
            .enumerate()
            .any(|(number, rank)| rank.waits.is_some() && rank.failed.is_none() && !self.is_stopped(job, number));
        let only_harm = steps.iter().all(|step| matches!(step, Step::Harm | Step::Exit(_)));
        if wait && only_harm && job.ticks < 8 {
            steps.push(Step::TimePasses);
        }
        steps
    }

    fn take(&self, job: &mut Job, step: Step) {
        match step {
            Step::Submit(rank) => {
                let value = 10 * (job.ranks[rank].ended.len() as i64) + rank as i64;
                let operation = match rank {
                    0 => job.hub.submit(value),
                    _ => job.members[rank - 1].submit(value),
                };
                job.ranks[rank].waits = Some(operation);
            }
            Step::ToHub(member) => match job.up[member].pop_front() {
                Some(message) => job.hub.receive(member as u32, message, job.now),
                None => {
                    job.up_ends[member] = false;
                    job.hub.lose(member as u32);
                }
            },
            Step::ToMember(member) => match job.down[member].pop_front() {
                Some(message) => job.members[member - 1].receive(message, job.now),
                None => {
                    job.down_ends[member] = false;
                    job.members[member - 1].lose();
                }
            },
            Step::Harm => self.strike(job),
            Step::Exit(rank) => self.end_process(job, rank),
            Step::TimePasses => self.pass_time(job),
        }
        self.deliver(job);
    }

    fn strike(&self, job: &mut Job) {
        job.harmed = true;
        let victim = self.victim;
        match self.harm {
            Harm::Exits => self.end_process(job, victim),
            Harm::Parts if job.ranks[victim].waits.is_none() => match victim {
                0 => job.hub.part(),
                _ => job.members[victim - 1].part(),
            },
            Harm::Leaves => match victim {
                0 => job.hub.leave(),
                _ => job.members[victim - 1].leave(),
            },
            _ => {}
        }
    }

    fn end_process(&self, job: &mut Job, rank: usize) {
        job.exited[rank] = true;
        match rank {
            0 => job.down_ends[1..].fill(true),
            _ => job.up_ends[rank] = true,
        }
    }

    fn pass_time(&self, job: &mut Job) {
        job.now += WATCH / 2 + Duration::from_millis(1);
        job.ticks += 1;
        for rank in 0..self.size {
            if self.is_stopped(job, rank) {
                continue;
            }
            let up = job.ranks[rank].waits.filter(|_| !job.ranks[rank].time_is_up);
            job.ranks[rank].time_is_up |= up.is_some();
            match rank {
                0 => {
                    up.inspect(|&operation| job.hub.give_up(operation, job.now));
                    job.hub.beat();
                    job.hub.tick(job.now);
                }
                _ => {
                    let member = &mut job.members[rank - 1];
                    up.inspect(|&operation| member.give_up(operation, job.now));
                    member.beat();
                    member.tick(job.now);
                }
            }
        }
    }

    fn deliver(&self, job: &mut Job) {
        for (rank, message) in job.hub.outgoing() {
            if !self.is_stopped(job, 0) {
                job.down[rank as usize].push_back(message);
            }
        }
        for member in 1..self.size {
            let outgoing = job.members[member - 1].outgoing();
            if !self.is_stopped(job, member) {
                job.up[member].extend(outgoing);
            }
        }
        for rank in 0..self.size {
            let Some(operation) = job.ranks[rank].waits.filter(|_| !self.is_stopped(job, rank)) else { continue };
            let answer = match rank {
                0 => job.hub.answer(operation),
                _ => job.members[rank - 1].answer(operation),
            };
            match answer {
                Some(Answer::Least(value)) => {
                    let rank = &mut job.ranks[rank];
                    rank.ended.push(value);
                    (rank.waits, rank.time_is_up) = (None, false);
                }
                Some(failed) => {
                    job.ranks[rank].waits = None;
                    job.ranks[rank].failed = Some(failed);
                }
                None => {}
            }
        }
    }

    fn check_always(&self, job: &Job) {
        for rank in &job.ranks {
            for (operation, &value) in rank.ended.iter().enumerate() {
                assert_eq!(value, 10 * operation as i64, "the minimum, which rank 0 sent");
            }
            if let Some(Answer::Failed(verdict)) = &rank.failed {
                assert_ne!(self.harm, Harm::None, "no rank fails without a fault");
                assert_eq!(verdict.ranks, [self.victim as u32], "no other rank is to blame: {verdict:?}");
                let possible: &[Fault] = match self.harm {
                    Harm::None => &[],
                    Harm::Exits => &[Fault::Lost],
                    Harm::Stops => &[Fault::Silent],
                    Harm::Hangs => &[Fault::Late],
                    Harm::Parts => &[Fault::Parted, Fault::Late],
                    Harm::Leaves => &[Fault::Left],
                };
                assert!(possible.contains(&verdict.fault), "{:?} is reported as {verdict:?}", self.harm);
            }
        }
    }

    fn check_end(&self, job: &Job) {
        for (number, rank) in job.ranks.iter().enumerate() {
            if number != self.victim || self.harm == Harm::None {
                let whole = rank.ended.len() as u64 == OPERATIONS + 1;
                assert!(whole || rank.failed.is_some(), "rank {number} waits for ever after {:?}", self.harm);
            }
        }
    }
}
