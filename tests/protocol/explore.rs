//! Visits all reachable states of a model. If a state is invalid, the report contains the steps that lead to the state.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The state after a step, or an error message if the step violates a rule.
pub type After<State> = Result<State, String>;

pub type Take<'a, Step, State> = dyn FnMut(Step, After<State>) + 'a;

pub trait Model {
    type State: Clone + Hash + Debug;
    type Step: Copy + Debug;
    /// Stores each part of a state only once, because many states have equal parts.
    type Parts: Default;

    fn start(&self) -> Self::State;
    fn steps(&self, state: &Self::State, take: &mut Take<'_, Self::Step, Self::State>);
    /// Replaces parts of a new state with equal parts from earlier states, which saves memory.
    fn share(parts: &mut Self::Parts, state: &mut Self::State);
    fn is_over(&self, state: &Self::State) -> bool;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explored {
    pub states: usize,
    pub steps: usize,
    pub ends: usize,
}

impl Display for Explored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} states, {} steps, {} ends", self.states, self.steps, self.ends)
    }
}

/// A 128-bit hash of a state. Among 10^7 states, the probability of two equal hashes is about 10^-24.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64, u64);

impl Fingerprint {
    pub fn of(state: &impl Hash) -> Self {
        let mut words = Words { halves: Self(1, 2), word: 1 };
        state.hash(&mut words);
        words.flush();
        words.halves
    }
}

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u128(u128::from(self.0) << 64 | u128::from(self.1));
    }
}

/// Hashes the parts of a state. Several small parts are combined into one 64-bit word. The word begins with a 1 bit, so
/// that parts of different lengths get different words.
struct Words {
    halves: Fingerprint,
    /// The incomplete word: a 1 bit, followed by the bytes that were added since the last full word.
    word: u64,
}

impl Words {
    fn add(&mut self, words: (u64, u64)) {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a).wrapping_mul(u128::from(b));
            product as u64 ^ (product >> 64) as u64
        };
        self.halves.0 = fold(self.halves.0 ^ words.0 ^ 0x243f_6a88_85a3_08d3, 0x9e37_79b9_7f4a_7c15);
        self.halves.1 = fold(self.halves.1 ^ words.1 ^ 0x1319_8a2e_0370_7344, 0xc2b2_ae3d_27d4_eb4f);
    }

    fn flush(&mut self) {
        if self.word > 1 {
            self.add((self.word, self.word));
            self.word = 1;
        }
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        self.word = self.word << 8 | u64::from(byte);
        if self.word >> 56 > 0 {
            self.flush();
        }
    }

    #[inline]
    fn number(&mut self, number: u64) {
        match u8::try_from(number) {
            Ok(byte) if byte < u8::MAX => self.byte(byte),
            _ => {
                self.byte(u8::MAX);
                self.flush();
                self.add((number, number));
            }
        }
    }
}

impl Hasher for Words {
    fn finish(&self) -> u64 {
        unreachable!("a fingerprint has more bits")
    }

    fn write(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        bytes.iter().for_each(|&byte| self.byte(byte));
    }

    fn write_u8(&mut self, number: u8) {
        self.byte(number);
    }

    fn write_u16(&mut self, number: u16) {
        self.number(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.number(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.number(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.number(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.number(number as u64);
    }

    fn write_u128(&mut self, number: u128) {
        self.flush();
        self.add(((number >> 64) as u64, number as u64));
    }
}

/// Creates hashers that return a fingerprint unchanged, because a fingerprint already is a hash.
pub type ByFingerprint = BuildHasherDefault<Plain>;

#[derive(Default)]
pub struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a fingerprint is a number");
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = number as u64;
    }
}

struct Known(HashMap<Fingerprint, u32, ByFingerprint>);

impl Known {
    fn new(start: &impl Hash) -> Self {
        Self([(Fingerprint::of(start), 0)].into_iter().collect())
    }

    fn number(&self, state: &impl Hash) -> Option<u32> {
        self.0.get(&Fingerprint::of(state)).copied()
    }

    fn meet(&mut self, state: &impl Hash) -> (u32, bool) {
        let next = u32::try_from(self.0.len()).expect("fewer states than this are visited");
        let number = *self.0.entry(Fingerprint::of(state)).or_insert(next);
        (number, number == next)
    }
}

#[track_caller]
pub fn holds<M: Model>(what: &str, model: &M) -> Explored {
    let began = std::time::Instant::now();
    match explore(model) {
        Ok(explored) => {
            println!("{what}: {explored}, in {:.1} s", began.elapsed().as_secs_f64());
            explored
        }
        Err(found) => panic!("{what}: {found}"),
    }
}

/// Visits all states breadth-first, so that a reported path to an error is as short as possible.
pub fn explore<M: Model>(model: &M) -> Result<Explored, String> {
    let most = 20_000_000;
    let start = model.start();
    let mut known = Known::new(&start);
    // The predecessor of each state on the shortest path from the first state.
    let mut before: Vec<u32> = vec![0];
    let mut first: Vec<usize> = Vec::new();
    let mut after: Vec<u32> = Vec::new();
    let mut ends: Vec<u32> = Vec::new();
    let mut parts = M::Parts::default();
    let mut layer = vec![start];
    while !layer.is_empty() {
        let mut next = Vec::new();
        for state in layer {
            let number = first.len() as u32;
            assert!(before.len() < most, "the states do not fit into memory: use a smaller setting");
            first.push(after.len());
            let mut broken = None;
            model.steps(&state, &mut |step, stepped| match stepped {
                Ok(mut state) => {
                    let (successor, is_new) = known.meet(&state);
                    if is_new {
                        before.push(number);
                        M::share(&mut parts, &mut state);
                        next.push(state);
                    }
                    after.push(successor);
                }
                Err(what) => drop(broken.get_or_insert((step, what))),
            });
            if let Some((step, what)) = broken {
                return Err(text(model, &known, &before, number, &what, Some(&step)));
            }
            if model.is_over(&state) {
                ends.push(number);
            } else if first[number as usize] == after.len() {
                return Err(text(model, &known, &before, number, "all processes wait", None));
            }
        }
        layer = next;
    }
    let steps = after.len();
    first.push(steps);
    if let Some(lost) = without_end(&first, &after, &ends) {
        return Err(text(model, &known, &before, lost, "no end can be reached from here", None));
    }
    Ok(Explored { states: before.len(), steps, ends: ends.len() })
}

fn without_end(first: &[usize], after: &[u32], ends: &[u32]) -> Option<u32> {
    let states = first.len() - 1;
    let mut reaches = vec![false; states];
    ends.iter().for_each(|&end| reaches[end as usize] = true);
    // Descending order needs few rounds of the loop, because most steps lead to a state with a higher number.
    let mut continues = true;
    while std::mem::take(&mut continues) {
        for state in (0..states).rev() {
            let mut next = after[first[state]..first[state + 1]].iter();
            if !reaches[state] && next.any(|&next| reaches[next as usize]) {
                reaches[state] = true;
                continues = true;
            }
        }
    }
    reaches.iter().position(|&reached| !reached).map(|state| state as u32)
}

fn text<M: Model>(model: &M, known: &Known, before: &[u32], number: u32, what: &str, last: Option<&M::Step>) -> String {
    let mut way = vec![number];
    while way[way.len() - 1] != 0 {
        way.push(before[way[way.len() - 1] as usize]);
    }
    let mut state = model.start();
    let mut steps = Vec::new();
    for &next in way.iter().rev().skip(1) {
        let mut taken = None;
        model.steps(&state, &mut |step, after| {
            if let Ok(after) = after
                && taken.is_none()
                && known.number(&after) == Some(next)
            {
                taken = Some((step, after));
            }
        });
        let (step, after) = taken.expect("the step was taken before");
        steps.push(format!("{step:?}"));
        state = after;
    }
    steps.extend(last.map(|step| format!("{step:?}")));
    format!("{what}, after these steps:\n  {}\nin {state:#?}", steps.join("\n  "))
}

/// A model for tests of `explore`. Each state is a number, and the number 9 violates a rule.
struct Numbers {
    steps: &'static [(u8, u8)],
    ends: &'static [u8],
}

impl Model for Numbers {
    type State = u8;
    type Step = u8;
    type Parts = ();

    fn start(&self) -> u8 {
        0
    }

    fn steps(&self, state: &u8, take: &mut Take<'_, u8, u8>) {
        for &(_, after) in self.steps.iter().filter(|(before, _)| before == state) {
            take(after, if after == 9 { Err("the number is nine".to_owned()) } else { Ok(after) });
        }
    }

    fn share((): &mut (), _: &mut u8) {}

    fn is_over(&self, state: &u8) -> bool {
        self.ends.contains(state)
    }
}

#[test]
fn all_states_and_steps_are_counted_and_an_end_may_follow_states_discovered_later() {
    let steps = &[(0, 1), (0, 2), (1, 0), (2, 3), (3, 4), (4, 1), (1, 5), (2, 5), (2, 3)];
    let explored = explore(&Numbers { steps, ends: &[5] });
    assert_eq!(explored, Ok(Explored { states: 6, steps: 9, ends: 1 }));
}

#[test]
fn states_from_which_no_end_can_be_reached_are_found() {
    let steps = &[(0, 1), (0, 2), (2, 3), (3, 4), (4, 2)];
    let found = explore(&Numbers { steps, ends: &[1] });
    assert_eq!(found, Err("no end can be reached from here, after these steps:\n  2\nin 2".to_owned()));
}

#[test]
fn a_state_without_a_step_is_found() {
    let found = explore(&Numbers { steps: &[(0, 1), (0, 2), (2, 3)], ends: &[1] });
    assert_eq!(found, Err("all processes wait, after these steps:\n  2\n  3\nin 3".to_owned()));
}

#[test]
fn the_shortest_path_to_a_broken_rule_is_reported() {
    let found = explore(&Numbers { steps: &[(0, 1), (1, 2), (2, 9), (0, 3), (3, 9), (9, 0)], ends: &[] });
    assert_eq!(found, Err("the number is nine, after these steps:\n  3\n  9\nin 3".to_owned()));
}
