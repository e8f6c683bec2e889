//! Connects the ranks of a job through sockets. A background thread reads and writes the sockets while callers wait for
//! results.
//!
//! Until the background thread starts, callers read and write the sockets, so that a single-threaded program can fork.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::hub::Hub;
use super::member::Member;
use super::message::{Message, Token};
use super::stream::RankStream;
use super::{Answer, BEAT};
use crate::process::signals::without_signals;

pub const LONGEST_SLICE: Duration = Duration::from_millis(100);

const HELLO: Duration = Duration::from_secs(5);

/// The number of unidentified connections is limited, because each connection uses a descriptor.
const MOST_UNIDENTIFIED: usize = 16;

#[derive(Debug)]
enum RankRole {
    Hub(Hub),
    Member(Member),
}

macro_rules! either {
    ($role:expr, $of:ident => $value:expr) => {
        match $role {
            RankRole::Hub($of) => $value,
            RankRole::Member($of) => $value,
        }
    };
}

#[derive(Debug)]
struct Door {
    listener: Arc<TcpListener>,
    callers: VecDeque<(RankStream, Instant)>,
    tokens: Tokens,
}

impl Door {
    /// Accepts new connections. If there are too many unidentified connections, the oldest connections are closed,
    /// because a rank of the job identifies itself immediately.
    fn open(&mut self, most: usize, now: Instant) {
        for _ in 0..MOST_UNIDENTIFIED {
            match self.listener.accept() {
                Ok((socket, _)) => self.callers.extend(RankStream::new(socket).ok().map(|stream| (stream, now))),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // `accept` has probably failed because of the limit of descriptors, so the oldest unidentified
                // connection is closed.
                Err(_) => return drop(self.callers.pop_front()),
            }
            if self.callers.len() > most {
                self.callers.pop_front();
            }
        }
    }
}

fn is_equal(one: Token, other: Token) -> bool {
    std::hint::black_box(one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b))) == 0
}

#[derive(Debug, Clone, Copy)]
pub struct Tokens {
    pub hello: Token,
    pub welcome: Token,
}

type Source = (Arc<dyn AsFd + Send + Sync>, bool);

#[derive(Debug)]
struct Table {
    role: RankRole,
    streams: Vec<Option<RankStream>>,
    door: Option<Door>,
    closing: bool,
}

impl Table {
    fn turn(&mut self, now: Instant) {
        self.let_in(now);
        for (rank, stream) in (0..).zip(&mut self.streams) {
            let Some(stream) = stream.as_mut().filter(|stream| !stream.broken) else { continue };
            for message in stream.read() {
                match &mut self.role {
                    RankRole::Hub(hub) => hub.receive(rank, message, now),
                    RankRole::Member(member) => member.receive(message, now),
                }
            }
            if stream.broken {
                match &mut self.role {
                    RankRole::Hub(hub) => hub.lose(rank),
                    RankRole::Member(member) => member.lose(),
                }
            }
        }
        either!(&mut self.role, role => role.tick(now));
        self.send();
    }

    fn let_in(&mut self, now: Instant) {
        let (Some(door), RankRole::Hub(hub)) = (&mut self.door, &mut self.role) else { return };
        for (mut caller, since) in std::mem::take(&mut door.callers) {
            match caller.read_hello() {
                Some(Message::Hello { token, rank }) if is_equal(token, door.tokens.hello) && hub.expects(rank) => {
                    caller.send(&Message::Welcome { token: door.tokens.welcome });
                    self.streams[rank as usize] = Some(caller);
                    hub.admit(rank);
                }
                None if !caller.broken && now < since + HELLO => door.callers.push_back((caller, since)),
                _ => {}
            }
        }
        if hub.answer(0).is_some() {
            self.door = None;
        } else {
            door.open(self.streams.len() + MOST_UNIDENTIFIED, now);
        }
    }

    fn send(&mut self) {
        let outgoing = match &mut self.role {
            RankRole::Hub(hub) => hub.outgoing(),
            RankRole::Member(member) => member.outgoing().into_iter().map(|message| (0, message)).collect(),
        };
        for (rank, message) in outgoing {
            if let Some(stream) = &mut self.streams[rank as usize] {
                stream.send(&message);
            }
        }
    }

    fn beat(&mut self) {
        either!(&mut self.role, role => role.beat());
        self.send();
    }

    fn answer(&self, operation: u64) -> Option<Answer> {
        either!(&self.role, role => role.answer(operation))
    }

    fn sources(&self) -> Vec<Source> {
        let callers = self.door.iter().flat_map(|door| &door.callers).map(|(caller, _)| caller);
        let streams = self.streams.iter().flatten().chain(callers).filter(|stream| !stream.broken);
        let sockets = streams.map(|stream| -> Source { (stream.socket.clone(), stream.congested()) });
        sockets.chain(self.door.iter().map(|door| -> Source { (door.listener.clone(), false) })).collect()
    }
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
    /// A byte that is written to this socket wakes up the background thread.
    wake: UnixStream,
}

impl Shared {
    /// Locks the table, which is consistent even after a panic, because each event is processed completely under the
    /// lock.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve_once(&self, woken: Option<&UnixStream>, timeout: Duration) {
        let sources = self.lock().sources();
        let flags = |&sends: &bool| if sends { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut fds: Vec<_> = sources.iter().map(|(source, sends)| PollFd::new(source, flags(sends))).collect();
        fds.extend(woken.map(|woken| PollFd::new(woken, PollFlags::IN)));
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        // The result of `poll` is ignored, because all sockets are read next even if `poll` was interrupted.
        let _ = poll(&mut fds, Some(&timeout));
        self.lock().turn(Instant::now());
        self.changed.notify_all();
    }

    fn serve(&self, mut woken: &UnixStream) {
        let mut next_beat = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_beat {
                self.lock().beat();
                next_beat = now + BEAT;
            }
            self.serve_once(Some(woken), next_beat.saturating_duration_since(now));
            while woken.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
            if self.lock().closing {
                return;
            }
        }
    }
}

/// Only the process that created a `Meeting` may use the `Meeting`.
#[derive(Debug)]
pub struct Meeting {
    shared: Arc<Shared>,
    /// The handle of the background thread, or, before this thread starts, the socket that wakes it up.
    thread: Mutex<(Option<UnixStream>, Option<JoinHandle<()>>)>,
}

impl Meeting {
    fn new(role: RankRole, streams: Vec<Option<RankStream>>, door: Option<Door>) -> std::io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let table = Mutex::new(Table { role, streams, door, closing: false });
        let shared = Arc::new(Shared { table, changed: Condvar::new(), wake });
        Ok(Self { shared, thread: Mutex::new((Some(woken), None)) })
    }

    /// Creates the `Meeting` of rank 0 in a job of `size` ranks.
    pub fn host(listener: TcpListener, size: u32, tokens: Tokens) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut hub = Hub::new(size);
        hub.submit(0);
        let door = Door { listener: Arc::new(listener), callers: VecDeque::new(), tokens };
        Self::new(RankRole::Hub(hub), (0..size).map(|_| None).collect(), Some(door))
    }

    /// Creates the `Meeting` of a rank above 0, given a socket that is connected to rank 0.
    pub fn join(mut socket: TcpStream, rank: u32, tokens: Tokens, patience: Duration) -> std::io::Result<Self> {
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(patience))?;
        socket.set_read_timeout(Some(patience))?;
        let (mut hello, mut expected) = (Vec::new(), Vec::new());
        Message::Hello { token: tokens.hello, rank }.encode(&mut hello);
        Message::Welcome { token: tokens.welcome }.encode(&mut expected);
        socket.write_all(&hello)?;
        let mut answer = vec![0; expected.len()];
        socket.read_exact(&mut answer)?;
        if answer != expected {
            return Err(std::io::Error::new(ErrorKind::InvalidData, "another program listens at this address"));
        }
        Self::new(RankRole::Member(Member::new(rank)), vec![Some(RankStream::new(socket)?)], None)
    }

    pub fn serve(&self) -> std::io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(woken) = thread.0.take() else { return Ok(()) };
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name("torchdata-ranks".to_owned()).stack_size(256 << 10);
        thread.1 = Some(without_signals(|| builder.spawn(move || shared.serve(&woken)))?);
        Ok(())
    }

    pub fn submit(&self, value: i64) -> u64 {
        let mut table = self.shared.lock();
        let operation = either!(&mut table.role, role => role.submit(value));
        self.send(table);
        operation
    }

    /// Waits up to `slice` for the result of an operation.
    pub fn wait(&self, operation: u64, slice: Duration) -> Option<Answer> {
        let slice = slice.min(LONGEST_SLICE);
        let answer = self.shared.lock().answer(operation);
        if answer.is_some() {
            return answer;
        }
        let serves_itself = self.thread.lock().unwrap_or_else(PoisonError::into_inner).1.is_none();
        if serves_itself {
            self.shared.serve_once(None, slice);
            return self.shared.lock().answer(operation);
        }
        let end = Instant::now() + slice;
        let mut table = self.shared.lock();
        loop {
            let answer = table.answer(operation);
            let left = end.saturating_duration_since(Instant::now());
            if answer.is_some() || left.is_zero() {
                return answer;
            }
            table = self.shared.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn give_up(&self, operation: u64) {
        let mut table = self.shared.lock();
        let now = Instant::now();
        // All messages are read before giving up, because the result may have arrived while this process was suspended.
        table.turn(now);
        either!(&mut table.role, role => role.give_up(operation, now));
        self.send(table);
    }

    /// Informs the hub that this rank abandons its current operation and will start no other operation.
    pub fn leave(&self) {
        let mut table = self.shared.lock();
        either!(&mut table.role, role => role.leave());
        self.send(table);
    }

    /// Returns the descriptors of all sockets. Forked children give up these descriptors, because an inherited
    /// descriptor would keep the parent's connection open.
    pub fn descriptors(&self) -> Vec<i32> {
        use std::os::fd::AsRawFd;
        let sources = self.shared.lock().sources();
        sources.iter().map(|(source, _)| source.as_fd().as_raw_fd()).collect()
    }

    fn send(&self, mut table: MutexGuard<'_, Table>) {
        table.send();
        let congested = table.streams.iter().flatten().any(RankStream::congested);
        drop(table);
        self.shared.changed.notify_all();
        if congested {
            self.wake();
        }
    }

    fn wake(&self) {
        // The result of the write is ignored, because a full socket already contains bytes that wake up the background
        // thread.
        let _ = (&self.shared.wake).write(&[1]);
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let mut table = self.shared.lock();
        either!(&mut table.role, role => role.part());
        table.closing = true;
        self.send(table);
        self.wake();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).1.take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}
