//! Tests how often a waiting thread yields the processor. A thread must continue to yield as long as its waits end
//! early because of the yielding. A thread must rarely yield if only unrelated threads use the processor.

use proptest::prelude::*;
use torchdata_core::process::turns::Turns;

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;

struct Waiter {
    turns: Turns,
    processes: usize,
    now: u64,
    yielded: u64,
    without: u64,
}

impl Waiter {
    fn new() -> Self {
        Self { turns: Turns::new(), processes: 3, now: 5 * MILLI, yielded: 0, without: 0 }
    }

    /// Simulates a thread that yields the processor while it waits. Yield number `helps`, counted from 0, ends the
    /// wait. If `helps` is None, no yield ends the wait. Each yield lasts `turn` nanoseconds.
    fn wait(&mut self, turn: u64, helps: Option<u32>, sleep: u64) {
        let turns = self.turns.begin(self.now);
        self.without += u64::from(turns == 0);
        for number in 0..turns {
            let began = self.now;
            self.now += turn;
            self.yielded += turn;
            let continues = self.turns.yielded(began, self.now, self.processes);
            if helps == Some(number) {
                return self.turns.helped();
            }
            if !continues {
                break;
            }
        }
        self.now += sleep;
        self.turns.slept(turns, sleep);
    }
}

#[test]
fn yields_that_help_continue_forever() {
    let mut waiter = Waiter::new();
    for _ in 0..10_000 {
        waiter.wait(500 * MICRO, Some(9), 0);
        waiter.now += 10 * MICRO;
    }
    assert_eq!(waiter.without, 0);
}

#[test]
fn yields_among_many_processes_may_take_any_time() {
    for (processes, gives_up) in [(3, true), (257, false)] {
        let mut waiter = Waiter { processes, ..Waiter::new() };
        for _ in 0..1_000 {
            waiter.wait(5 * MILLI, Some(0), 0);
        }
        assert_eq!(waiter.without > 0, gives_up);
    }
}

#[test]
fn yields_that_do_not_help_stop_until_a_try_helps_or_a_sleep_is_short() {
    let mut waiter = Waiter::new();
    for _ in 0..1_600 {
        waiter.wait(MICRO, None, MILLI);
    }
    assert!((1_400..1_600).contains(&waiter.without), "{}", waiter.without);
    waiter.without = 0;
    for _ in 0..100 {
        waiter.wait(MICRO, Some(0), MILLI);
    }
    assert!(waiter.without < 16, "{}", waiter.without);
    for _ in 0..100 {
        waiter.wait(MICRO, None, MILLI);
    }
    waiter.wait(MICRO, None, 10 * MICRO);
    waiter.without = 0;
    waiter.wait(MICRO, Some(9), 0);
    assert_eq!(waiter.without, 0);
}

#[test]
fn unrelated_threads_get_a_fiftieth_of_the_time() {
    let mut waiter = Waiter::new();
    let begin = waiter.now;
    while waiter.now < begin + 20_000 * MILLI {
        waiter.wait(4 * MILLI, Some(0), 200 * MICRO);
        waiter.now += 100 * MICRO;
    }
    let share = waiter.yielded as f64 / (waiter.now - begin) as f64;
    assert!(share < 0.03, "{share}");
}

#[test]
fn an_occasional_unrelated_thread_changes_nothing() {
    let mut waiter = Waiter::new();
    for number in 0..10_000 {
        waiter.wait(if number % 500 == 0 { 4 * MILLI } else { 20 * MICRO }, Some(0), 0);
        waiter.now += 100 * MICRO;
    }
    assert_eq!(waiter.without, 0);
}

#[test]
fn yields_resume_when_the_unrelated_thread_has_exited() {
    let mut waiter = Waiter::new();
    for _ in 0..1_000 {
        waiter.wait(4 * MILLI, Some(0), 200 * MICRO);
    }
    waiter.now += 1_000 * MILLI;
    waiter.without = 0;
    for _ in 0..1_000 {
        waiter.wait(20 * MICRO, Some(0), 0);
    }
    assert_eq!(waiter.without, 0);
}

proptest! {
    /// A waiting thread gives unrelated threads at most one eighth of its time, plus a constant. Yields of up to one
    /// millisecond are ignored, because an unrelated thread keeps the processor for several milliseconds.
    #[test]
    fn the_time_of_unrelated_threads_is_bounded(
        waits in prop::collection::vec((0_u64..10, any::<bool>(), 0_u64..2_000, 0_u64..2_000), 1..2_000)
    ) {
        let mut waiter = Waiter::new();
        let begin = waiter.now;
        let mut strange = 0;
        for (turn, helps, sleep, work) in waits {
            let before = waiter.yielded;
            waiter.wait(turn * MILLI, helps.then_some(0), sleep * MICRO);
            strange += if turn > 1 { waiter.yielded - before } else { 0 };
            waiter.now += work * MICRO;
        }
        prop_assert!(strange <= (waiter.now - begin) / 8 + 25 * MILLI, "{strange}");
    }
}
