//! Wraps the ordered queue for tests. `reserve` and `pop` wait up to a timeout, and `Held` pauses workers.

use std::time::Duration;

use torchdata_core::queue::ordered::{OrderedQueue, Pop, Reserve};

pub trait Waiting<T> {
    fn reserve(&self, timeout: Duration) -> Reserve;
    fn pop(&self, timeout: Duration) -> Pop<T>;
}

impl<T> Waiting<T> for OrderedQueue<T> {
    fn reserve(&self, timeout: Duration) -> Reserve {
        loop {
            match self.try_reserve() {
                Reserve::TimedOut if self.wait_reservable(timeout) => {}
                answer => return answer,
            }
        }
    }

    fn pop(&self, timeout: Duration) -> Pop<T> {
        loop {
            match self.try_pop() {
                Pop::TimedOut if self.wait_filled(timeout) => {}
                popped => return popped,
            }
        }
    }
}

pub struct Held<'a>(&'a OrderedQueue<usize>);

pub fn hold(queue: &OrderedQueue<usize>) -> Held<'_> {
    queue.hold();
    Held(queue)
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}
