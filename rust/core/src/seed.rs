//! Derives the seeds for all random operations of a pipeline from one number.
//!
//! A generator consists of two ChaCha12 streams of random numbers (Bernstein 2008, `rand_chacha`). The *shared* stream
//! has equal random numbers in all workers, so that each worker shuffles in the same order as a single process. The
//! *worker* stream equals the shared stream until `spawn` makes the worker stream independent.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const STATE_VERSION: u8 = 1;
const STATE_LEN: usize = 1 + 2 * (32 + 16);
const SHARED: u64 = 0x7368_6172_6564; // "shared"

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not a state of a seed generator of this release")]
pub struct InvalidState;

/// Generates seeds for pipes and for random number generators.
///
/// ```
/// use torchdata_core::seed::SeedGenerator;
/// let mut main = SeedGenerator::new(7);
/// let mut workers = [main.spawn(0), main.spawn(1)];
/// assert_eq!(workers[0].generate_shared_seed(), workers[1].generate_shared_seed());
/// assert_ne!(workers[0].generate_seed(), workers[1].generate_seed());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedGenerator {
    shared: ChaCha12Rng,
    worker: ChaCha12Rng,
}

fn stream(words: [u64; 4]) -> ChaCha12Rng {
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha12Rng::from_seed(key)
}

impl SeedGenerator {
    pub fn new(seed: u64) -> Self {
        let shared = stream([seed, SHARED, 0, 0]);
        Self { worker: shared.clone(), shared }
    }

    pub fn generate_shared_seed(&mut self) -> u64 {
        self.shared.next_u64()
    }

    /// Returns a seed that differs between ranks and workers.
    pub fn generate_seed(&mut self) -> u64 {
        self.worker.next_u64()
    }

    /// Returns a generator for the child `id`, with the same shared seeds, but independent worker seeds.
    ///
    /// Children of different parents get independent seeds, because a child's seeds depend on the parent's worker
    /// seeds.
    pub fn spawn(&self, id: u64) -> Self {
        let mut mixer = self.worker.clone();
        // The seeds of a child are drawn from a separate ChaCha stream, so that they differ from the seeds of the
        // parent.
        let position = mixer.get_word_pos() as u64;
        mixer.set_stream(id.wrapping_add(1));
        let words = std::array::from_fn(|_| mixer.next_u64());
        let [a, b, c, d] = words;
        Self { shared: self.shared.clone(), worker: stream([a, b ^ position, c, d]) }
    }

    pub fn export(&self) -> Vec<u8> {
        let mut state = Vec::with_capacity(STATE_LEN);
        state.push(STATE_VERSION);
        for rng in [&self.shared, &self.worker] {
            state.extend_from_slice(&rng.get_seed());
            state.extend_from_slice(&rng.get_word_pos().to_le_bytes());
        }
        state
    }

    pub fn import(state: &[u8]) -> Result<Self, InvalidState> {
        if state.len() != STATE_LEN || state[0] != STATE_VERSION {
            return Err(InvalidState);
        }
        let read = |start: usize| {
            let key: [u8; 32] = state[start..start + 32].try_into().expect("the length was checked");
            let position: [u8; 16] = state[start + 32..start + 48].try_into().expect("the length was checked");
            let mut rng = ChaCha12Rng::from_seed(key);
            rng.set_word_pos(u128::from_le_bytes(position));
            rng
        };
        Ok(Self { shared: read(1), worker: read(49) })
    }
}
