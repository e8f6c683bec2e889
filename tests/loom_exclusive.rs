//! Explores all interleavings of threads that use one value. Only one thread at a time may access the value, and each
//! thread must see the previous thread's changes.
#![cfg(loom)]
#![allow(missing_docs)]

mod common;

use common::watchdog;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use torchdata_core::sync::exclusive::Exclusive;

#[test]
fn the_holder_has_exclusive_access_and_sees_the_previous_changes() {
    let _watchdog = watchdog(600);
    loom::model(|| {
        let count = Arc::new(Exclusive::new(UnsafeCell::new(0)));
        let add = |count: &Exclusive<UnsafeCell<u32>>| {
            let Some(held) = count.try_hold() else { return 0 };
            // SAFETY: no other thread accesses the value, which this loom model verifies.
            held.with_mut(|count| unsafe { *count += 1 });
            1
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let count = Arc::clone(&count);
                thread::spawn(move || add(&count) + add(&count))
            })
            .collect();
        let added: u32 = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert!(added >= 2, "who is alone is not refused");
        // SAFETY: no other thread accesses the value, which this loom model verifies.
        let found = count.try_hold().expect("all have let go").with(|count| unsafe { *count });
        assert_eq!(found, added);
    });
}
