//! Visits every state that a model can come to, and says how it came to one that it must not come to.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The state after a step, or what the step breaks.
pub type After<State> = Result<State, String>;

/// The steps that can happen next, and the states that must not be.
pub trait Model {
    /// All that matters for what can happen next.
    type State: Clone + Hash + Debug;
    /// One step.
    type Step: Copy + Debug;

    /// The state in which everything begins.
    fn start(&self) -> Self::State;
    /// Every step that can be taken, and the state after it, or what it breaks.
    fn steps(&self, state: &Self::State) -> Vec<(Self::Step, After<Self::State>)>;
    /// Whether everything is over in this state. Others must have a next step, and a way to such a one.
    fn is_over(&self, state: &Self::State) -> bool;
}

/// The numbers of states, steps and ends that were visited.
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

/// 128 bits that stand for a state. Of 10^7 states two are mistaken for each other once in 10^24 explorations.
pub fn fingerprint(state: &impl Hash) -> u128 {
    let mut hasher = Fingerprint(1, 2);
    state.hash(&mut hasher);
    u128::from(hasher.0) << 64 | u128::from(hasher.1)
}

/// Two independent halves, a multiplication each for every word.
struct Fingerprint(u64, u64);

impl Fingerprint {
    fn add(&mut self, word: u64) {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        self.0 = fold(self.0 ^ word ^ 0x243f_6a88_85a3_08d3, 0x9e37_79b9_7f4a_7c15);
        self.1 = fold(self.1 ^ word ^ 0x1319_8a2e_0370_7344, 0xc2b2_ae3d_27d4_eb4f);
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    fn write_u128(&mut self, number: u128) {
        self.add(number as u64);
        self.add((number >> 64) as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.add(number as u64);
    }
}

/// Fingerprints as keys: their bits are as good as those of any hash.
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

/// Goes breadth first through all states, so that what it reports is a shortest way there.
///
/// # Errors
/// A step breaks a rule; a state has no next step and is no end; or from a state no end can be reached any more.
pub fn explore<M: Model>(model: &M) -> Result<Explored, String> {
    let most = 20_000_000;
    let start = model.start();
    let mut known: HashMap<u128, u32, ByFingerprint> = [(fingerprint(&start), 0)].into_iter().collect();
    // By state: the state before it. And who comes before whom, for the way back from the ends.
    let mut before: Vec<u32> = vec![0];
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut ends: Vec<u32> = Vec::new();
    let mut layer = vec![(0_u32, start)];
    while !layer.is_empty() {
        let mut next = Vec::new();
        for (number, state) in layer {
            let steps = model.steps(&state);
            if model.is_over(&state) {
                ends.push(number);
            } else if steps.is_empty() {
                return Err(told(model, &before, number, "everybody waits", None));
            }
            assert!(before.len() < most, "more states than fit into memory: take a smaller setting");
            for (step, after) in steps {
                let after = match after {
                    Ok(after) => after,
                    Err(broken) => return Err(told(model, &before, number, &broken, Some(&step))),
                };
                let count = u32::try_from(before.len()).expect("so many states are never visited");
                let successor = *known.entry(fingerprint(&after)).or_insert(count);
                if successor == count {
                    before.push(number);
                    next.push((count, after));
                }
                edges.push((successor, number));
            }
        }
        layer = next;
    }
    let states = before.len();
    if let Some(lost) = without_end(states, &mut edges, &ends) {
        return Err(told(model, &before, lost, "from here no end can be reached", None));
    }
    Ok(Explored { states, steps: edges.len(), ends: ends.len() })
}

/// The first state from which no end can be reached. `edges` are (after, before).
fn without_end(states: usize, edges: &mut [(u32, u32)], ends: &[u32]) -> Option<u32> {
    edges.sort_unstable();
    let mut reaches = vec![false; states];
    let mut todo = ends.to_vec();
    ends.iter().for_each(|&end| reaches[end as usize] = true);
    while let Some(state) = todo.pop() {
        let first = edges.partition_point(|edge| edge.0 < state);
        for &(_, before) in edges[first..].iter().take_while(|edge| edge.0 == state) {
            if !std::mem::replace(&mut reaches[before as usize], true) {
                todo.push(before);
            }
        }
    }
    reaches.iter().position(|&reached| !reached).map(|state| state as u32)
}

/// The fault and the way there: the exploration once more up to that state, as only numbers were kept.
fn told<M: Model>(model: &M, before: &[u32], state: u32, what: &str, last: Option<&M::Step>) -> String {
    let mut way = vec![state];
    while way[way.len() - 1] != 0 {
        way.push(before[way[way.len() - 1] as usize]);
    }
    let start = model.start();
    let mut known: HashMap<u128, u32, ByFingerprint> = [(fingerprint(&start), 0)].into_iter().collect();
    let mut states = vec![start];
    let mut taken = vec![String::new()];
    let mut number = 0;
    while states.len() <= state as usize {
        for (step, after) in model.steps(&states[number].clone()) {
            let Ok(after) = after else { continue };
            let count = states.len() as u32;
            if *known.entry(fingerprint(&after)).or_insert(count) == count {
                states.push(after);
                taken.push(format!("{step:?}"));
            }
        }
        number += 1;
    }
    let steps = way.iter().rev().skip(1).map(|&state| taken[state as usize].clone());
    let steps: Vec<String> = steps.chain(last.map(|step| format!("{step:?}"))).collect();
    format!("{what}, after these steps:\n  {}\nin {:#?}", steps.join("\n  "), states[state as usize])
}
