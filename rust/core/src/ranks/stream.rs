//! A non-blocking connection to another rank, which sends and receives whole messages.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::message::{HELLO_LEN, Message};

/// If the send buffer contains at least `MOST_BUFFERED` unsent bytes, heartbeats are dropped, because the receiving
/// rank does not read its messages.
const MOST_BUFFERED: usize = 4096;

const MOST_READ: usize = 64 << 10;
const PIECE: usize = 1024;

#[derive(Debug)]
pub struct RankStream {
    pub socket: Arc<TcpStream>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    pub broken: bool,
}

impl RankStream {
    pub fn new(socket: TcpStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket: Arc::new(socket), incoming: Vec::new(), outgoing: Vec::new(), broken: false })
    }

    pub fn congested(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub fn send(&mut self, message: &Message) {
        if *message != Message::Beat || self.outgoing.len() < MOST_BUFFERED {
            message.encode(&mut self.outgoing);
        }
        self.flush();
    }

    /// Sends buffered bytes as far as possible. A failed write does not mark the connection as broken, because received
    /// messages may still be readable.
    pub fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match (&*self.socket).write(&self.outgoing) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.outgoing.clear(),
            }
        }
    }

    fn fill(&mut self, most: usize) -> Option<usize> {
        let mut piece = [0; PIECE];
        loop {
            match (&*self.socket).read(&mut piece[..most]) {
                Ok(count) if count > 0 => {
                    self.incoming.extend(&piece[..count]);
                    return Some(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                _ => {
                    self.broken = true;
                    return None;
                }
            }
        }
    }

    /// Reads at most one [`Message::Hello`] from a connection that is not identified yet.
    pub fn read_hello(&mut self) -> Option<Message> {
        while !self.broken {
            match Message::take(&mut self.incoming) {
                Ok(Some(message)) => return Some(message),
                Ok(None) if self.incoming.len() < HELLO_LEN => {
                    self.fill(HELLO_LEN - self.incoming.len())?;
                }
                _ => self.broken = true,
            }
        }
        None
    }

    pub fn read(&mut self) -> Vec<Message> {
        let (mut messages, mut total) = (Vec::new(), 0);
        while !self.broken
            && total < MOST_READ
            && let Some(count) = self.fill(PIECE)
        {
            total += count;
            while !self.broken {
                match Message::take(&mut self.incoming) {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(_) => self.broken = true,
                }
            }
        }
        messages
    }
}
