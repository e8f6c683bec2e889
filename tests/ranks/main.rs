//! The promises of hub and members, explored: every order of events of a small job, with a death at every step.

mod explored {
    use std::collections::{HashSet, VecDeque};
    use std::time::{Duration, Instant};

    use torchdata_core::ranks::hub::Hub;
    use torchdata_core::ranks::member::Member;
    use torchdata_core::ranks::message::Message;
    use torchdata_core::ranks::{Answer, Fault, WATCH};

    /// Operations that each rank would run, besides the opening.
    const OPERATIONS: u64 = 2;

    /// The harm to the victim of a run, once, at any step.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Harm {
        None,
        /// Its process dies, and its connections break.
        Dies,
        /// It stands still: neither gives signs of life nor takes messages.
        Stops,
        /// Its program comes to no further operation, but it lives.
        Hangs,
        /// It says goodbye before its next operation.
        Parts,
        /// It wants the end of an operation no longer.
        Leaves,
    }

    /// A whole job: its ranks, what is under way between them, and the time.
    #[derive(Clone, Hash, PartialEq, Eq)]
    struct Rank {
        /// The operation that it waits for.
        waits: Option<u64>,
        /// Operations that it ended, and with which value.
        ended: Vec<i64>,
        failed: Option<Answer>,
        time_is_up: bool,
    }

    #[derive(Clone)]
    struct Job {
        hub: Hub,
        members: Vec<Member>,
        ranks: Vec<Rank>,
        /// By member: what goes to the hub, and what comes from it.
        up: Vec<VecDeque<Message>>,
        down: Vec<VecDeque<Message>>,
        /// By member: whether the connection ends behind that, because the sender's process is gone.
        up_ends: Vec<bool>,
        down_ends: Vec<bool>,
        gone: Vec<bool>,
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
        /// A rank whose operation failed ends, as programs do, and takes its connections with it.
        Exit(usize),
        /// All who wait have waited too long, one after the other, and time passes.
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

        /// Explores all orders; the number of states that were seen.
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
                gone: vec![false; self.size],
                harmed: self.harm == Harm::None,
                now: self.start,
                ticks: 0,
            };
            for rank in 1..self.size {
                job.hub.seat(rank as u32);
                job.members[rank - 1].beat();
            }
            job.hub.beat();
            self.deliver(&mut job);
            job
        }

        /// The hash that tells states apart. Instants are a few fixed ones.
        fn key(&self, job: &Job) -> u64 {
            use std::hash::{DefaultHasher, Hash, Hasher};
            let mut hasher = DefaultHasher::new();
            (&job.hub, &job.members, &job.ranks, &job.up, &job.down).hash(&mut hasher);
            (&job.up_ends, &job.down_ends, &job.gone, job.harmed, job.now, job.ticks).hash(&mut hasher);
            hasher.finish()
        }

        fn stands_still(&self, job: &Job, rank: usize) -> bool {
            job.gone[rank] || (job.harmed && rank == self.victim && self.harm == Harm::Stops)
        }

        fn idle(&self, job: &Job, rank: usize) -> bool {
            job.harmed && rank == self.victim && self.harm != Harm::None
        }

        fn steps(&self, job: &Job) -> Vec<Step> {
            let mut steps = Vec::new();
            for (number, rank) in job.ranks.iter().enumerate() {
                let goes_on = rank.waits.is_none() && rank.failed.is_none() && rank.ended.len() as u64 <= OPERATIONS;
                if goes_on && !self.idle(job, number) {
                    steps.push(Step::Submit(number));
                }
                if rank.failed.is_some() && !job.gone[number] && !self.stands_still(job, number) {
                    steps.push(Step::Exit(number));
                }
            }
            for member in 1..self.size {
                let to_hub = !job.up[member].is_empty() || job.up_ends[member];
                if to_hub && !self.stands_still(job, 0) {
                    steps.push(Step::ToHub(member));
                }
                let to_member = !job.down[member].is_empty() || job.down_ends[member];
                if to_member && !self.stands_still(job, member) {
                    steps.push(Step::ToMember(member));
                }
            }
            if !job.harmed {
                steps.push(Step::Harm);
            }
            // The time-out is longer than anything else that can happen.
            let wait =
                job.ranks.iter().enumerate().any(|(number, rank)| {
                    rank.waits.is_some() && rank.failed.is_none() && !self.stands_still(job, number)
                });
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
                Harm::Dies => self.end_process(job, victim),
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
            job.gone[rank] = true;
            match rank {
                0 => job.down_ends[1..].fill(true),
                _ => job.up_ends[rank] = true,
            }
        }

        fn pass_time(&self, job: &mut Job) {
            job.now += WATCH / 2 + Duration::from_millis(1);
            job.ticks += 1;
            for rank in 0..self.size {
                if self.stands_still(job, rank) {
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

        /// Hands over what was made to be sent, and answers to those who wait.
        fn deliver(&self, job: &mut Job) {
            for (rank, message) in job.hub.outgoing() {
                if !self.stands_still(job, 0) {
                    job.down[rank as usize].push_back(message);
                }
            }
            for member in 1..self.size {
                let outgoing = job.members[member - 1].outgoing();
                if !self.stands_still(job, member) {
                    job.up[member].extend(outgoing);
                }
            }
            for rank in 0..self.size {
                let Some(operation) = job.ranks[rank].waits.filter(|_| !self.stands_still(job, rank)) else { continue };
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
                    assert_eq!(value, 10 * operation as i64, "the least of all, which is rank 0's");
                }
                if let Some(Answer::Failed(verdict)) = &rank.failed {
                    assert_ne!(self.harm, Harm::None, "nobody fails where nothing happens");
                    assert_eq!(verdict.ranks, [self.victim as u32], "nobody else is to blame: {verdict:?}");
                    let possible: &[Fault] = match self.harm {
                        Harm::None => &[],
                        Harm::Dies => &[Fault::Dead],
                        Harm::Stops => &[Fault::Silent],
                        Harm::Hangs => &[Fault::Late],
                        Harm::Parts => &[Fault::Parted, Fault::Late],
                        Harm::Leaves => &[Fault::Left],
                    };
                    assert!(possible.contains(&verdict.fault), "{:?} is told as {verdict:?}", self.harm);
                }
            }
        }

        /// Nothing can happen any more: all have run all operations, or know of the one who has not.
        fn check_end(&self, job: &Job) {
            for (number, rank) in job.ranks.iter().enumerate() {
                if number != self.victim || self.harm == Harm::None {
                    let whole = rank.ended.len() as u64 == OPERATIONS + 1;
                    assert!(whole || rank.failed.is_some(), "rank {number} waits for ever after {:?}", self.harm);
                }
            }
        }
    }
}

use explored::{Explorer, Harm};

fn explore(harm: Harm) {
    let mut states = 0;
    for size in 2..=3 {
        for victim in 0..size {
            states += Explorer::new(size, victim, harm).run();
        }
    }
    println!("{harm:?}: {states} states");
    assert!(states > 100, "the explorer found something to explore");
}

#[test]
fn ranks_that_all_live_agree_whatever_the_order() {
    explore(Harm::None);
}

#[test]
fn every_rank_that_is_left_hears_who_died() {
    explore(Harm::Dies);
}

#[test]
fn every_rank_that_is_left_hears_who_was_stopped() {
    explore(Harm::Stops);
}

#[test]
fn every_rank_hears_who_did_not_come_along() {
    explore(Harm::Hangs);
}

#[test]
fn every_rank_hears_who_took_its_leave() {
    explore(Harm::Parts);
}

#[test]
fn every_rank_hears_who_left_its_loop() {
    explore(Harm::Leaves);
}

mod judged {
    use std::time::{Duration, Instant};

    use torchdata_core::ranks::hub::Hub;
    use torchdata_core::ranks::message::Message;
    use torchdata_core::ranks::{Answer, Fault, Verdict, WATCH};

    /// A hub of three ranks behind the opening.
    fn opened() -> Hub {
        let mut hub = Hub::new(3);
        hub.submit(0);
        hub.seat(1);
        hub.seat(2);
        assert_eq!(hub.answer(0), Some(Answer::Least(0)));
        hub
    }

    fn failed(fault: Fault, ranks: &[u32], by: u32) -> Option<Answer> {
        Some(Answer::Failed(Verdict { fault, ranks: ranks.to_vec(), by }))
    }

    #[test]
    fn a_rank_that_comes_while_it_is_judged_came_too_late_for_all() {
        let (mut hub, start) = (opened(), Instant::now());
        hub.receive(1, Message::Beat, start);
        hub.submit(7);
        hub.receive(2, Message::Value { operation: 1, value: 8 }, start);
        hub.receive(2, Message::Late { operation: 1 }, start + WATCH);
        assert_eq!(hub.answer(1), None, "rank 1 is listened for");
        hub.receive(1, Message::Value { operation: 1, value: 9 }, start + WATCH + Duration::from_millis(10));
        assert_eq!(hub.answer(1), failed(Fault::Late, &[1], 2));
    }

    #[test]
    fn a_rank_that_died_behind_its_value_is_missed_in_the_next_operation_only() {
        let (mut hub, now) = (opened(), Instant::now());
        hub.receive(1, Message::Value { operation: 1, value: -5 }, now);
        hub.lose(1);
        hub.receive(2, Message::Value { operation: 1, value: 8 }, now);
        assert_eq!(hub.submit(7), 1);
        assert_eq!(hub.answer(1), Some(Answer::Least(-5)));
        assert_eq!(hub.submit(7), 2);
        assert_eq!(hub.answer(2), failed(Fault::Dead, &[1], 0));
    }

    #[test]
    fn ranks_that_never_come_to_the_opening_are_absent() {
        let (mut hub, now) = (Hub::new(4), Instant::now());
        hub.submit(0);
        hub.seat(2);
        hub.give_up(0, now);
        assert_eq!(hub.answer(0), failed(Fault::Absent, &[1, 3], 0));
        hub.outgoing();
        hub.seat(3);
        assert!(matches!(&hub.outgoing()[..], [(3, Message::Failed(_))]), "who comes later is told");
    }
}

mod sent {
    use proptest::prelude::*;
    use torchdata_core::ranks::message::Message;
    use torchdata_core::ranks::{Fault, Verdict};

    fn messages() -> impl Strategy<Value = Message> {
        let faults = [Fault::Absent, Fault::Late, Fault::Dead, Fault::Silent, Fault::Parted, Fault::Left];
        let verdicts =
            (prop::sample::select(faults.to_vec()), prop::collection::vec(any::<u32>(), 1..20), any::<u32>());
        prop_oneof![
            (any::<[u8; 16]>(), any::<u32>()).prop_map(|(token, rank)| Message::Hello { token, rank }),
            any::<[u8; 16]>().prop_map(|token| Message::Welcome { token }),
            (any::<u64>(), any::<i64>()).prop_map(|(operation, value)| Message::Value { operation, value }),
            (any::<u64>(), any::<i64>()).prop_map(|(operation, value)| Message::Least { operation, value }),
            any::<u64>().prop_map(|operation| Message::Late { operation }),
            prop::sample::select(vec![Message::Beat, Message::Left, Message::Bye]),
            verdicts.prop_map(|(fault, ranks, by)| Message::Failed(Verdict { fault, ranks, by })),
        ]
    }

    proptest! {
        #[test]
        fn messages_arrive_as_they_were_sent_however_they_are_cut(
            sent in prop::collection::vec(messages(), 0..10),
            cut in 1_usize..50,
        ) {
            let mut bytes = Vec::new();
            sent.iter().for_each(|message| message.encode(&mut bytes));
            let (mut came, mut received) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(cut) {
                came.extend(piece);
                while let Some(message) = Message::take(&mut came).expect("whole messages") {
                    received.push(message);
                }
            }
            prop_assert_eq!(received, sent);
            prop_assert!(came.is_empty());
        }

        #[test]
        fn arbitrary_bytes_are_messages_or_damage_and_never_more(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut came = bytes;
            let mut left = came.len() + 1;
            while let Ok(Some(_)) = Message::take(&mut came) {
                prop_assert!(came.len() < left);
                left = came.len();
            }
        }
    }
}

mod over_sockets {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use torchdata_core::ranks::meeting::{Meeting, Tokens};
    use torchdata_core::ranks::{Answer, Fault, Verdict};

    const TOKENS: Tokens = Tokens { hello: [1; 16], welcome: [2; 16] };
    const SLICE: Duration = Duration::from_millis(50);

    fn end_of(meeting: &Meeting, operation: u64) -> Answer {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(answer) = meeting.wait(operation, SLICE) {
                return answer;
            }
            assert!(Instant::now() < until, "operation {operation} does not end");
        }
    }

    /// Opens the meeting of two ranks, beside callers who have no business there.
    fn opened() -> (Meeting, Meeting) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hub = Meeting::host(listener, 2, TOKENS).unwrap();
        let mut silent = TcpStream::connect(address).unwrap();
        let mut noisy = TcpStream::connect(address).unwrap();
        noisy.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        silent.write_all(&[1]).unwrap();
        let member = std::thread::spawn(move || {
            let wrong = Tokens { hello: [3; 16], ..TOKENS };
            let patience = Duration::from_secs(10);
            assert!(Meeting::join(TcpStream::connect(address).unwrap(), 1, wrong, patience).is_err());
            let member = Meeting::join(TcpStream::connect(address).unwrap(), 1, TOKENS, patience).unwrap();
            assert_eq!(end_of(&member, 0), Answer::Least(0));
            member
        });
        assert_eq!(end_of(&hub, 0), Answer::Least(0));
        (hub, member.join().unwrap())
    }

    #[test]
    fn two_ranks_agree_and_part() {
        let (hub, member) = opened();
        hub.serve().unwrap();
        member.serve().unwrap();
        for value in 1..100 {
            let operations = [hub.submit(value), member.submit(value + 1)];
            assert_eq!(operations, [value as u64; 2]);
            assert_eq!(end_of(&hub, value as u64), Answer::Least(value));
            assert_eq!(end_of(&member, value as u64), Answer::Least(value));
        }
        drop(member);
        let operation = hub.submit(0);
        let parted = Verdict { fault: Fault::Parted, ranks: vec![1], by: 0 };
        assert_eq!(end_of(&hub, operation), Answer::Failed(parted));
    }

    #[test]
    fn the_last_words_of_a_hub_that_goes_arrive() {
        let (hub, member) = opened();
        member.serve().unwrap();
        let operation = member.submit(1);
        hub.leave();
        drop(hub);
        let left = Verdict { fault: Fault::Left, ranks: vec![0], by: 0 };
        assert_eq!(end_of(&member, operation), Answer::Failed(left));
    }

    /// The number of bytes that a hub takes from a stranger before it hangs up.
    fn swallowed(stranger: &TcpStream, until: Instant) -> usize {
        stranger.set_nonblocking(true).unwrap();
        let (flood, mut taken) = ([5, 0, 0].repeat(10_000), 0);
        loop {
            match (&*stranger).write(&flood) {
                Ok(count) => taken += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return taken,
            }
            assert!(Instant::now() < until, "the hub listens to a stranger");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_crowd_of_strangers_takes_few_descriptors_and_keeps_no_rank_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hub = Meeting::host(listener, 2, TOKENS).unwrap();
        hub.serve().unwrap();
        let crowd: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        let noisy = TcpStream::connect(address).unwrap();
        let flooding = std::thread::spawn(move || swallowed(&noisy, Instant::now() + Duration::from_secs(20)));
        assert_eq!(hub.wait(0, SLICE), None);
        let member = Meeting::join(TcpStream::connect(address).unwrap(), 1, TOKENS, Duration::from_secs(10)).unwrap();
        // The door, the wake-up and two ranks' worth of others beside 16.
        assert!(hub.descriptors().len() <= 2 + 16 + 3, "{}", hub.descriptors().len());
        assert_eq!(end_of(&member, 0), Answer::Least(0));
        assert_eq!(end_of(&hub, 0), Answer::Least(0));
        // Buffers of the two sockets, and no more: all behind the first message stays unread.
        assert!(flooding.join().unwrap() < 16 << 20);
        drop(crowd);
    }

    #[test]
    fn a_stranger_who_says_nothing_is_sent_away() {
        use std::io::Read;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hub = Meeting::host(listener, 2, TOKENS).unwrap();
        hub.serve().unwrap();
        let mut silent = TcpStream::connect(address).unwrap();
        silent.write_all(&[1, 20]).unwrap();
        silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }
}
