//! Provides tests with functions that reserve and remove items of the ordered queue, and wait up to a timeout.

use std::time::Duration;

use torchdata_core::queue::ordered::{OrderedQueue, Pop, Reserve, Slot, View};

pub trait Waiting<T> {
    fn reserve(&self, timeout: Duration) -> Reserve;
    fn pop(&self, timeout: Duration) -> Pop<T>;
    fn for_each(&self, look: impl FnMut(Slot, View<'_, T>));
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

    fn for_each(&self, mut look: impl FnMut(Slot, View<'_, T>)) {
        let looked: Result<(), ()> = self.try_for_each(|slot, view| {
            look(slot, view);
            Ok(())
        });
        looked.expect("`look` does not fail");
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
