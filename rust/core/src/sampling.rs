//! Computes the same result as Python's `random.Random.sample` for a sample of the whole population, but faster.
//!
//! Like CPython, the module uses the random number generator MT19937 (Matsumoto and Nishimura, "Mersenne Twister", ACM
//! TOMACS 8, 1998).

pub const WORDS: usize = 624;
const MIDDLE: usize = 397;

pub struct MersenneTwister {
    words: [u32; WORDS],
    /// The index of the next word to use, or `WORDS` if new words must be computed first.
    next: usize,
}

impl MersenneTwister {
    /// Creates a generator from a state of Python's generator, and skips the first `drawn` words of this state.
    pub fn new(words: [u32; WORDS], drawn: usize) -> Self {
        Self { words, next: drawn.min(WORDS) }
    }

    fn refill(&mut self) {
        for index in 0..WORDS {
            let mixed = (self.words[index] & 0x8000_0000) | (self.words[(index + 1) % WORDS] & 0x7fff_ffff);
            let odd = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
            self.words[index] = self.words[(index + MIDDLE) % WORDS] ^ (mixed >> 1) ^ odd;
        }
        self.next = 0;
    }

    pub fn draw(&mut self) -> u32 {
        if self.next == WORDS {
            self.refill();
        }
        let mut word = self.words[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// Like Python, the method draws random numbers until a number is below `limit`.
    fn below(&mut self, limit: u32) -> u32 {
        let spare = limit.leading_zeros();
        loop {
            let bits = self.draw() >> spare;
            if bits < limit {
                return bits;
            }
        }
    }

    /// Returns the same list as `sample(range(count), count)` in Python.
    pub fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut pool: Vec<u32> = (0..count).collect();
        let mut order = Vec::with_capacity(pool.len());
        for left in (1..=count).rev() {
            let chosen = self.below(left) as usize;
            order.push(pool[chosen]);
            pool[chosen] = pool[left as usize - 1];
        }
        order
    }
}
