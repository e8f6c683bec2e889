//! The time for a seed and for a child generator.
#![allow(missing_docs)] // criterion's macros create public items

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use torchdata_core::seed::SeedGenerator;

fn seeds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("seed");
    group.measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
    let mut generator = SeedGenerator::new(1);
    group.bench_function("generate", |bencher| bencher.iter(|| black_box(&mut generator).generate_seed()));
    group.bench_function("spawn", |bencher| bencher.iter(|| black_box(&generator).spawn(7)));
    group.finish();
}

criterion_group!(benches, seeds);
criterion_main!(benches);
