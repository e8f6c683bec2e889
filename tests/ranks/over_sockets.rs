//! Tests that two ranks can connect through sockets while unrelated programs connect to the same port.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use torchdata_core::ranks::meeting::{Meeting, Tokens};
use torchdata_core::ranks::{Answer, Fault, Verdict};

const TOKENS: Tokens = Tokens { hello: [1; 16], welcome: [2; 16] };
const SLICE: Duration = Duration::from_millis(50);

fn end_of(meeting: &Meeting, operation: u64) -> Answer {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(answer) = meeting.wait(operation, SLICE) {
            return answer;
        }
        assert!(Instant::now() < until, "operation {operation} does not end");
    }
}

fn opened() -> (Meeting, Meeting) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hub = Meeting::host(listener, 2, TOKENS).unwrap();
    let mut silent = TcpStream::connect(address).unwrap();
    let mut noisy = TcpStream::connect(address).unwrap();
    noisy.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    silent.write_all(&[1]).unwrap();
    let member = std::thread::spawn(move || {
        let wrong = Tokens { hello: [3; 16], ..TOKENS };
        let patience = Duration::from_secs(10);
        assert!(Meeting::join(TcpStream::connect(address).unwrap(), 1, wrong, patience).is_err());
        let member = Meeting::join(TcpStream::connect(address).unwrap(), 1, TOKENS, patience).unwrap();
        assert_eq!(end_of(&member, 0), Answer::Least(0));
        member
    });
    assert_eq!(end_of(&hub, 0), Answer::Least(0));
    (hub, member.join().unwrap())
}

#[test]
fn two_ranks_agree_and_leave() {
    let (hub, member) = opened();
    hub.serve().unwrap();
    member.serve().unwrap();
    for value in 1..100 {
        let operations = [hub.submit(value), member.submit(value + 1)];
        assert_eq!(operations, [value as u64; 2]);
        assert_eq!(end_of(&hub, value as u64), Answer::Least(value));
        assert_eq!(end_of(&member, value as u64), Answer::Least(value));
    }
    drop(member);
    let operation = hub.submit(0);
    let parted = Verdict { fault: Fault::Parted, ranks: vec![1], by: 0 };
    assert_eq!(end_of(&hub, operation), Answer::Failed(parted));
}

#[test]
fn the_last_messages_of_a_hub_that_leaves_arrive() {
    let (hub, member) = opened();
    member.serve().unwrap();
    let operation = member.submit(1);
    hub.leave();
    drop(hub);
    let left = Verdict { fault: Fault::Left, ranks: vec![0], by: 0 };
    assert_eq!(end_of(&member, operation), Answer::Failed(left));
}

/// Returns how many bytes rank 0 accepts from an unrelated connection before it closes the connection.
fn swallowed(stranger: &TcpStream, until: Instant) -> usize {
    stranger.set_nonblocking(true).unwrap();
    let (flood, mut taken) = ([5, 0, 0].repeat(10_000), 0);
    loop {
        match (&*stranger).write(&flood) {
            Ok(count) => taken += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return taken,
        }
        assert!(Instant::now() < until, "the hub waits for an unknown connection");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn many_unrelated_connections_use_few_descriptors_and_do_not_block_ranks() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hub = Meeting::host(listener, 2, TOKENS).unwrap();
    hub.serve().unwrap();
    let crowd: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let noisy = TcpStream::connect(address).unwrap();
    let flooding = std::thread::spawn(move || swallowed(&noisy, Instant::now() + Duration::from_secs(20)));
    assert_eq!(hub.wait(0, SLICE), None);
    let member = Meeting::join(TcpStream::connect(address).unwrap(), 1, TOKENS, Duration::from_secs(10)).unwrap();
    // Two descriptors wait for new connections and wake-ups, and at most 16 more belong to unidentified connections.
    assert!(hub.descriptors().len() <= 2 + 16 + 3, "{}", hub.descriptors().len());
    assert_eq!(end_of(&member, 0), Answer::Least(0));
    assert_eq!(end_of(&hub, 0), Answer::Least(0));
    // Rank 0 reads only one message of the unrelated connection, so all further bytes stay in socket buffers.
    assert!(flooding.join().unwrap() < 16 << 20);
    drop(crowd);
}

#[test]
fn a_silent_unrelated_connection_is_closed() {
    use std::io::Read;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hub = Meeting::host(listener, 2, TOKENS).unwrap();
    hub.serve().unwrap();
    let mut silent = TcpStream::connect(address).unwrap();
    silent.write_all(&[1, 20]).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
}
