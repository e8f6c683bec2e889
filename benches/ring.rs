//! Measures the throughput and latency of a link between threads and between processes, compared with alternatives.
//!
//! Between threads, the alternative to a link is a bounded channel of `Vec<u8>`, which only passes a pointer. Between
//! processes, the alternative is a Unix socket pair. The benchmark measures the consumer. Producers send until they are
//! stopped.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::child::{inherited, inherited_fd, is_child, role, start, start_with};
use common::stream::{ITEM, Item, Receiver, Sender, open};
use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use torchdata_core::link::consumer::Message;
use torchdata_core::link::{Link, LinkConfig};
use torchdata_core::process::board::BellBoard;
use torchdata_core::protocol::Stream;

/// The sizes of the measured items, from a label to a small batch of images. Each entry contains a name, a size in
/// bytes, and a window in items.
const SIZES: [(&str, usize, u64); 4] =
    [("8 B", 8, 256), ("1 KiB", 1 << 10, 256), ("150 KiB", 150 << 10, 16), ("1 MiB", 1 << 20, 16)];
/// Payloads of at least this number of bytes are sent in a block instead of inline, as in the codec.
const BLOCK: usize = 8 << 10;

fn item(size: usize) -> Item {
    if size < BLOCK {
        Item { inline: vec![1; size], buffers: Vec::new() }
    } else {
        Item { inline: vec![1; 32], buffers: vec![vec![1; size]] }
    }
}

/// Calls `receive` `count` times, and returns the total duration.
fn timed(count: u64, mut receive: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..count).for_each(|_| receive());
    start.elapsed()
}

fn ring_threads(group: &mut BenchmarkGroup<WallTime>, name: &str, size: usize, window: u64) {
    let (link, bells) = open(LinkConfig::default());
    let mut receiver = Receiver::new(&link, &bells);
    receiver.end.begin(Stream::default(), window);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = Sender::new(&link, &bells);
            let item = item(size);
            while !done.load(Ordering::Relaxed) {
                sender.send(&item).unwrap();
            }
        });
        group.bench_function(format!("{name}/ring, threads"), |bench| {
            bench.iter_custom(|count| timed(count, || _ = black_box(receiver.next_unit())));
        });
        done.store(true, Ordering::Relaxed);
        // The sender may be waiting for permission to send another item, so a larger window lets the sender finish.
        receiver.end.set_window(u64::MAX);
        while receiver.poll().unwrap().is_some() {}
    });
}

fn ring_processes(group: &mut BenchmarkGroup<WallTime>, name: &str, size: usize, window: u64) {
    let (link, bells) = open(LinkConfig::default());
    let mut receiver = Receiver::new(&link, &bells);
    receiver.end.begin(Stream::default(), window);
    let _child = start(&format!("ring {size}"), &link, &bells);
    group.bench_function(format!("{name}/ring, processes"), |bench| {
        bench.iter_custom(|count| timed(count, || _ = black_box(receiver.next_unit())));
    });
}

/// Runs both ends of a link in one thread, one item at a time, so that no cache lines move between cores.
fn ring_one_thread(group: &mut BenchmarkGroup<WallTime>, name: &str, size: usize) {
    let (link, bells) = open(LinkConfig::default());
    let (mut sender, mut receiver) = (Sender::new(&link, &bells), Receiver::new(&link, &bells));
    receiver.end.begin(Stream::default(), 64);
    let item = item(size);
    group.bench_function(format!("{name}/ring, one thread"), |bench| {
        bench.iter_custom(|count| {
            let start = Instant::now();
            for index in 0..count {
                sender.send(&item).unwrap();
                if index % 64 == 63 || index + 1 == count {
                    (0..=index % 64).for_each(|_| _ = black_box(receiver.next_unit()));
                }
            }
            start.elapsed()
        });
    });
}

/// Measures a consumer that reads from two producer processes in turn, like a loader with two workers.
fn two_processes(group: &mut BenchmarkGroup<WallTime>, name: &str, size: usize, window: u64) {
    let bells = BellBoard::create(3).unwrap();
    let links = [0, 1].map(|_| Link::create(LinkConfig::default()).unwrap());
    let mut workers: Vec<_> = [1, 2].into_iter().zip(&links).collect::<Vec<_>>();
    let mut receivers: Vec<Receiver> = workers
        .iter()
        .map(|(bell, link)| Receiver {
            end: link.consumer(bells.bell(*bell).unwrap()).unwrap(),
            bell: bells.bell(0).unwrap(),
            unit: Message::default(),
        })
        .collect();
    receivers.iter_mut().for_each(|receiver| receiver.end.begin(Stream::default(), window));
    let _children: Vec<_> = workers
        .drain(..)
        .map(|(bell, link)| start_with(&format!("worker {size} {bell}"), &[link.region().fd(), bells.region.fd()]))
        .collect();
    let mut turn = 0;
    group.bench_function(format!("{name}/ring, two processes in turn"), |bench| {
        bench.iter_custom(|count| {
            timed(count, || {
                turn ^= 1;
                _ = black_box(receivers[turn].next_unit());
            })
        });
    });
}

fn channel(group: &mut BenchmarkGroup<WallTime>, name: &str, size: usize, window: u64) {
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<u8>>(window as usize);
    let producer = std::thread::spawn(move || while sender.send(vec![1; size]).is_ok() {});
    group.bench_function(format!("{name}/channel, threads"), |bench| {
        bench.iter_custom(|count| timed(count, || drop(black_box(receiver.recv().unwrap()))));
    });
    drop(receiver);
    producer.join().unwrap();
}

fn socket(group: &mut BenchmarkGroup<WallTime>, name: &str, size: usize) {
    let (mut mine, theirs) = UnixStream::pair().unwrap();
    let _child = start_with(&format!("socket {size}"), &[theirs.as_fd()]);
    let mut unit = vec![0; size];
    group.bench_function(format!("{name}/socket, processes"), |bench| {
        bench.iter_custom(|count| timed(count, || mine.read_exact(black_box(&mut unit)).unwrap()));
    });
}

fn throughput(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("throughput");
    for (name, size, window) in SIZES {
        if size < BLOCK {
            group.throughput(Throughput::Elements(1))
        } else {
            group.throughput(Throughput::Bytes(size as u64))
        };
        if size < BLOCK {
            ring_one_thread(&mut group, name, size);
        }
        ring_threads(&mut group, name, size, window);
        channel(&mut group, name, size, window);
        ring_processes(&mut group, name, size, window);
        socket(&mut group, name, size);
    }
    group.throughput(Throughput::Elements(1));
    two_processes(&mut group, "8 B", 8, 256);
    // The default window of a loader is 10 items.
    ring_processes(&mut group, "8 B, window 10", 8, 10);
    two_processes(&mut group, "8 B, window 10", 8, 10);
}

/// Creates the two ends of process `me` for a conversation: process 0 sends requests, and process 1 answers.
fn conversation(links: [&Link; 2], bells: &Arc<BellBoard>, me: usize) -> (Sender, Receiver) {
    let (peer, bell) = (bells.bell(1 - me).unwrap(), bells.bell(me).unwrap());
    let sender = Sender { end: links[me].producer(peer.clone()).unwrap(), bell: bell.clone() };
    let mut receiver = Receiver { end: links[1 - me].consumer(peer).unwrap(), bell, unit: Message::default() };
    receiver.end.begin(Stream::default(), 1);
    (sender, receiver)
}

fn answer(mut sender: Sender, mut receiver: Receiver) -> ! {
    loop {
        receiver.next_unit();
        while sender.end.push(ITEM, &[], &receiver.unit.payload).unwrap() != torchdata_core::link::producer::Push::Done
        {
        }
    }
}

fn latency(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round trip");
    let links = [0, 1].map(|_| Link::create(LinkConfig::default()).unwrap());
    let bells = BellBoard::create(2).unwrap();
    let (mut sender, mut receiver) = conversation([&links[0], &links[1]], &bells, 0);
    let _child = start_with("answer", &[links[0].region().fd(), bells.region.fd(), links[1].region().fd()]);
    group.bench_function("ring, processes", |bench| {
        bench.iter_custom(|count| {
            timed(count, || {
                sender.end.push(ITEM, &[], b"question").unwrap();
                receiver.next_unit();
            })
        });
    });
    let (mut mine, theirs) = UnixStream::pair().unwrap();
    let _echo = start_with("echo", &[theirs.as_fd()]);
    group.bench_function("socket, processes", |bench| {
        bench.iter_custom(|count| {
            timed(count, || {
                mine.write_all(b"question").unwrap();
                mine.read_exact(&mut [0; 8]).unwrap();
            })
        });
    });
}

/// Runs the role of a child process until its parent kills the child.
fn child() {
    let role = role();
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["ring", size] => {
            let (link, bells) = inherited();
            endless(Sender::new(&link, &bells), size);
        }
        ["worker", size, bell] => {
            let (link, bells) = inherited();
            let end = link.producer(bells.bell(0).unwrap()).unwrap();
            endless(Sender { end, bell: bells.bell(bell.parse().unwrap()).unwrap() }, size);
        }
        ["socket", size] => {
            let mut stream = UnixStream::from(inherited_fd(0));
            let unit = vec![1; size.parse().unwrap()];
            while stream.write_all(&unit).is_ok() {}
        }
        ["answer"] => {
            let (first, bells) = inherited();
            let second = Link::attach(inherited_fd(2)).unwrap();
            let (sender, receiver) = conversation([&first, &second], &bells, 1);
            answer(sender, receiver);
        }
        ["echo"] => {
            let mut stream = UnixStream::from(inherited_fd(0));
            let mut unit = [0; 8];
            while stream.read_exact(&mut unit).is_ok() && stream.write_all(&unit).is_ok() {}
        }
        _ => panic!("unknown role {role}"),
    }
}

fn endless(mut sender: Sender, size: &str) {
    let item = item(size.parse().unwrap());
    loop {
        sender.send(&item).unwrap();
    }
}

fn main() {
    if is_child() {
        return child();
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(900))
        .sample_size(10)
        .configure_from_args();
    throughput(&mut criterion);
    latency(&mut criterion);
    criterion.final_summary();
}
