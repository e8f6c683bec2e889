//! The cost of one turn in and out of order, by the number of peers.
#![allow(missing_docs)] // criterion's macros create public items

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use torchdata_core::round_robin::RoundRobin;

fn dispatch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dispatch");
    group.measurement_time(Duration::from_millis(700)).warm_up_time(Duration::from_millis(200));
    for peers in [2, 8, 64] {
        let mut turn = RoundRobin::new(peers, true);
        group.bench_function(format!("in_order/{peers}"), |bencher| {
            bencher.iter(|| {
                let peer = turn.choose(|peer| black_box(peer) < peers);
                turn.advance();
                peer
            });
        });
        // Every other peer is not ready, so each choice skips one.
        let mut turn = RoundRobin::new(peers, false);
        group.bench_function(format!("out_of_order/{peers}"), |bencher| {
            bencher.iter(|| {
                let peer = turn.choose(|peer| black_box(peer) % 2 == 1);
                turn.advance();
                peer
            });
        });
    }
    group.finish();
}

criterion_group!(benches, dispatch);
criterion_main!(benches);
