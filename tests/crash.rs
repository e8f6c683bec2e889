//! Tests what happens when a process is killed: published messages stay available, and other processes detect the exit.
//!
//! The child process kills itself with SIGKILL at a given point, so that each test is reproducible.
#![cfg(not(loom))]

mod common;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::child::{Process, inherited, role, run_again_portably, start};
use common::stream::{Arrived, ITEM, Item, Random, Receiver, SMALL, Sender, open};
use common::watchdog;
use torchdata_core::link::LinkConfig;
use torchdata_core::link::producer::{Part, Push};
use torchdata_core::process::liveness::{Watch, exit_with};
use torchdata_core::protocol::Stream;

#[test]
fn everything_holds_on_the_portable_backing_as_well() {
    let _watchdog = watchdog(120);
    run_again_portably("everything_holds_on_the_portable_backing_as_well");
}

/// The sizes of a link that has space for all items of a test, so that the child never waits.
const ROOMY: LinkConfig = LinkConfig { arena_capacity: 1 << 20, ..SMALL };

const WHOLE: u64 = 7;

fn item(index: u64) -> Item {
    let mut random = Random(index);
    Item { inline: random.bytes(20), buffers: vec![random.bytes(5000), random.bytes(100)] }
}

fn crash() -> ! {
    // SAFETY: `raise` only takes a number and accesses no memory.
    unsafe { libc::raise(libc::SIGKILL) };
    unreachable!("no process survives SIGKILL")
}

fn crash_at(point: &str) -> ! {
    let (link, bells) = inherited();
    let mut sender = Sender::new(&link, &bells);
    for index in 0..WHOLE {
        sender.send(&item(index)).unwrap();
    }
    let mut block = || sender.end.allocate(5000).unwrap().unwrap();
    match point {
        "between items" => {}
        "between blocks" => {
            let _first = block();
            crash()
        }
        "before publishing" => {
            let _parts = [Part::Block(block().into()), Part::Block(block().into())];
            crash()
        }
        "between fragments" => {
            for _ in 0..2 {
                assert_eq!(sender.end.push_fragment(&[1; 500]), Ok(Push::Done));
            }
        }
        "before the unit behind its fragments" => {
            sender.stream(&[1; 9000]).unwrap();
        }
        "in a batch, before its wake-up" => {
            for _ in 0..3 {
                assert_eq!(sender.end.push_item(ITEM, &[], b"batch"), Ok(Push::Done));
            }
        }
        other => panic!("unknown point {other}"),
    }
    crash()
}

fn drain_until_exit(receiver: &mut Receiver, watch: &Watch) -> Vec<Arrived> {
    let mut arrived = Vec::new();
    loop {
        // The exit is checked before the messages, so that no message published before the exit is missed.
        let exited = watch.exited();
        while let Some((_, unit)) = receiver.poll().expect("the exit of a process corrupts nothing") {
            arrived.push(unit);
        }
        if exited {
            return arrived;
        }
        let Receiver { end, bell, .. } = receiver;
        bell.wait(Duration::from_millis(20), || end.readable() != Ok(false));
    }
}

#[test]
fn a_killed_producer_leaves_exactly_what_it_had_published() {
    let _watchdog = watchdog(60);
    for (point, batch) in [
        ("between items", 0),
        ("between blocks", 0),
        ("before publishing", 0),
        ("between fragments", 0),
        ("before the unit behind its fragments", 0),
        ("in a batch, before its wake-up", 3),
    ] {
        let (link, bells) = open(ROOMY);
        let mut receiver = Receiver::new(&link, &bells);
        receiver.end.begin(Stream::default(), 100);
        let mut child = start(point, &link, &bells);
        let watch = Watch::open(child.pid()).unwrap();
        let arrived = drain_until_exit(&mut receiver, &watch);
        assert_eq!(child.0.wait().unwrap().signal(), Some(libc::SIGKILL), "{point}");
        assert_eq!(arrived.len() as u64, WHOLE + batch, "{point}");
        for (index, unit) in arrived.iter().enumerate() {
            match index as u64 {
                index @ ..WHOLE => assert!(unit.item() == item(index), "{point}, item {index}"),
                _ => assert_eq!(unit.inline, b"batch", "{point}"),
            }
        }
        // The producer was killed and cannot reuse the block, so the item stays readable.
        drop(receiver);
        assert!(arrived[0].item() == item(0));
    }
}

#[test]
fn an_exit_is_detected_and_a_running_process_is_not_reported() {
    let _watchdog = watchdog(30);
    let (link, bells) = open(ROOMY);
    let mut child = start("wait for ever", &link, &bells);
    let watch = Watch::open(child.pid()).unwrap();
    assert!(!watch.exited());
    assert!(!watch.wait(Duration::from_millis(30)));
    child.0.kill().unwrap();
    assert!(watch.wait(Duration::from_secs(25)));
    assert!(watch.exited(), "a zombie has exited");
    assert_eq!(child.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(watch.exited(), "a reaped process has exited");
    for number in [0, -1] {
        assert!(Watch::open(number).is_err(), "no process has the number {number}");
    }
}

#[test]
fn a_child_exits_when_its_parent_is_killed() {
    let _watchdog = watchdog(30);
    let (link, bells) = open(ROOMY);
    // The grandchild inherits the write end of the pipe, so the pipe ends when the grandchild has exited.
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "middle_process", "--ignored", "--nocapture"]).stdout(Stdio::piped());
    let mut middle = Process(command.spawn().unwrap());
    let mut pipe = middle.0.stdout.take().unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"ready\n") {
        let mut byte = [0];
        assert_eq!(pipe.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
    }
    // If the grandchild did not exit, the pipe would not end, and the watchdog would abort the test.
    middle.0.kill().unwrap();
    pipe.read_to_end(&mut text).unwrap();
    drop((link, bells));
}

#[test]
#[ignore = "a child process of another test runs this"]
fn middle_process() {
    let parent = std::process::id() as i32;
    // SAFETY: the child only starts a thread, prints, sleeps and exits. The child uses no lock of the parent.
    if unsafe { libc::fork() } == 0 {
        exit_with(Watch::open(parent).unwrap()).unwrap();
        println!("ready");
        std::thread::sleep(Duration::from_secs(60));
        crash();
    }
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
#[ignore = "child processes of other tests run this"]
fn child_process() {
    let _watchdog = watchdog(60);
    match role().as_str() {
        "wait for ever" => std::thread::sleep(Duration::from_secs(50)),
        point => crash_at(point),
    }
}
