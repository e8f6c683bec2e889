//! Measures the cost of the ordered queue per item in nanoseconds, within one thread and between two threads. A channel
//! of the standard library is measured for comparison.

use std::hint::black_box;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use torchdata_core::queue::ordered::{OrderedQueue, Outcome, Pop, Reserve};

use self::queue::Waiting;

#[allow(dead_code)] // this benchmark does not use holds
#[path = "../tests/common/queue.rs"]
mod queue;

const WAIT: Duration = Duration::from_secs(10);

fn queue_between_threads(capacity: usize, items: u64) -> Duration {
    let queue = Arc::new(OrderedQueue::<u64>::new(capacity, true));
    let producer = thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            for item in 0..items {
                let Reserve::Granted(slot) = queue.reserve(WAIT) else { panic!("no slot was granted in time") };
                queue.put(slot, Outcome::Item(item));
            }
            queue.append(Outcome::End(None));
        }
    });
    let begun = Instant::now();
    while let Pop::Item(item) = queue.pop(WAIT) {
        black_box(item);
    }
    let took = begun.elapsed();
    producer.join().unwrap();
    took
}

fn channel_between_threads(capacity: usize, items: u64) -> Duration {
    let (sender, receiver) = mpsc::sync_channel(capacity);
    let producer = thread::spawn(move || {
        for item in 0..items {
            sender.send(item).unwrap();
        }
    });
    let begun = Instant::now();
    while let Ok(item) = receiver.recv_timeout(WAIT) {
        black_box(item);
    }
    let took = begun.elapsed();
    producer.join().unwrap();
    took
}

fn ordered_queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ordered_queue");
    group.measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300)).sample_size(20);

    let queue = OrderedQueue::<u64>::new(10, true);
    group.bench_function("one_thread/queue", |bencher| {
        bencher.iter(|| {
            let Reserve::Granted(slot) = queue.reserve(Duration::ZERO) else { panic!("no room") };
            queue.put(slot, Outcome::Item(black_box(1)));
            queue.pop(Duration::ZERO)
        });
    });
    let (sender, receiver) = mpsc::sync_channel(10);
    group.bench_function("one_thread/channel", |bencher| {
        bencher.iter(|| {
            sender.try_send(black_box(1_u64)).unwrap();
            receiver.try_recv()
        });
    });
    for capacity in [10, 1000] {
        group.bench_function(format!("two_threads/queue/{capacity}"), |bencher| {
            bencher.iter_custom(|items| queue_between_threads(capacity, items));
        });
        group.bench_function(format!("two_threads/channel/{capacity}"), |bencher| {
            bencher.iter_custom(|items| channel_between_threads(capacity, items));
        });
    }
    group.finish();
}

criterion_group!(benches, ordered_queue);
criterion_main!(benches);
