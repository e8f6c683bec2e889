//! Compares `RoundRobin`, which visits peers in turn, with a simple list of peers.

use proptest::prelude::*;
use torchdata_core::round_robin::RoundRobin;

#[derive(Debug)]
struct Model {
    peers: usize,
    turns: Vec<usize>,
}

impl Model {
    fn new(peers: usize) -> Self {
        Self { peers, turns: (0..peers).collect() }
    }

    fn advance(&mut self) {
        if !self.turns.is_empty() {
            self.turns.rotate_left(1);
        }
    }

    fn end(&mut self, peer: usize) {
        self.turns.retain(|&other| other != peer);
    }

    fn choose(&mut self, in_order: bool, ready: &[bool]) -> Option<usize> {
        let position = self.turns.iter().position(|&peer| ready[peer])?;
        if in_order && position != 0 {
            return None;
        }
        self.turns.rotate_left(position);
        Some(self.turns[0])
    }
}

#[derive(Debug, Clone)]
enum Step {
    Advance,
    End(prop::sample::Index),
    Choose(Vec<bool>),
    Restart(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Advance),
        2 => any::<prop::sample::Index>().prop_map(Step::End),
        6 => prop::collection::vec(any::<bool>(), 8).prop_map(Step::Choose),
        1 => any::<prop::sample::Index>().prop_map(Step::Restart),
    ]
}

proptest! {
    #[test]
    fn any_sequence_of_calls_agrees_with_a_simple_model(
        peers in 0usize..8,
        in_order: bool,
        steps in prop::collection::vec(step(), 0..100),
    ) {
        let (mut robin, mut model) = (RoundRobin::new(peers, in_order), Model::new(peers));
        for step in steps {
            match step {
                Step::Advance => {
                    robin.advance();
                    model.advance();
                }
                Step::End(index) if peers > 0 => {
                    let peer = index.index(peers);
                    robin.end(peer);
                    model.end(peer);
                }
                Step::End(_) => {}
                Step::Choose(ready) => {
                    prop_assert_eq!(robin.choose(|peer| ready[peer]), model.choose(in_order, &ready));
                }
                Step::Restart(index) if peers > 0 => {
                    let peer = index.index(peers);
                    robin.start_at(peer);
                    model = Model::new(peers);
                    model.turns.rotate_left(peer);
                }
                Step::Restart(_) => robin.start(),
            }
            prop_assert_eq!(robin.next(), model.turns.first().copied());
            for peer in 0..model.peers {
                prop_assert_eq!(robin.is_ended(peer), !model.turns.contains(&peer));
            }
        }
    }

    #[test]
    fn items_dispatched_in_turn_are_collected_in_the_same_order(peers in 1usize..6, items in 0usize..60) {
        let mut dispatched = vec![Vec::new(); peers];
        let mut dispatcher = RoundRobin::new(peers, true);
        for item in 0..items {
            dispatched[dispatcher.next().unwrap()].push(item);
            dispatcher.advance();
        }
        let mut queues: Vec<_> = dispatched.into_iter().map(Vec::into_iter).collect();
        let (mut collector, mut collected) = (RoundRobin::new(peers, true), Vec::new());
        while let Some(peer) = collector.choose(|_| true) {
            match queues[peer].next() {
                Some(item) => {
                    collected.push(item);
                    collector.advance();
                }
                None => collector.end(peer),
            }
        }
        prop_assert_eq!(collected, (0..items).collect::<Vec<_>>());
    }
}
