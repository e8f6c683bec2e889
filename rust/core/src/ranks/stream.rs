//! A connection that never blocks: messages in whole, in both directions.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::message::{HELLO_LEN, Message};

/// Most bytes kept for a peer that takes none. One that is stopped misses signs of life, which it has no use for.
const FULL: usize = 4096;

/// Bytes that are read of a peer before it is another one's turn.
const TURN: usize = 64 << 10;

/// One end of a connection between two ranks.
#[derive(Debug)]
pub struct Stream {
    socket: Arc<TcpStream>,
    came: Vec<u8>,
    goes: Vec<u8>,
    broken: bool,
}

impl Stream {
    /// Takes a connected socket.
    pub fn new(socket: TcpStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket: Arc::new(socket), came: Vec::new(), goes: Vec::new(), broken: false })
    }

    /// The socket, to wait for. It stays open as long as somebody holds it.
    pub fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Whether nothing more will come.
    pub fn broken(&self) -> bool {
        self.broken
    }

    /// Whether bytes wait for the peer to take some.
    pub fn congested(&self) -> bool {
        !self.goes.is_empty()
    }

    /// Sends a message, or what of it the peer takes now.
    pub fn send(&mut self, message: &Message) {
        if *message != Message::Beat || self.goes.len() < FULL {
            message.encode(&mut self.goes);
        }
        self.flush();
    }

    /// Sends what waits, as far as the peer takes it. That it is gone shows when it is read from: its last words may be
    /// there to be read.
    pub fn flush(&mut self) {
        while !self.goes.is_empty() {
            match (&*self.socket).write(&self.goes) {
                Ok(sent) => drop(self.goes.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.goes.clear(),
            }
        }
    }

    /// The first message of a stranger, once it is there as a whole. Nothing behind it is read, and it is no longer
    /// than a [`Message::Hello`].
    pub fn read_hello(&mut self) -> Option<Message> {
        let mut piece = [0; HELLO_LEN];
        while !self.broken {
            match Message::take(&mut self.came) {
                Ok(Some(message)) => return Some(message),
                Ok(None) if self.came.len() < HELLO_LEN => {}
                _ => self.broken = true,
            }
            let left = HELLO_LEN - self.came.len();
            match (&*self.socket).read(&mut piece[..left]) {
                Ok(0) => self.broken = true,
                Ok(count) => self.came.extend(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.broken = true,
            }
        }
        None
    }

    /// Reads what has come, or as much as is read in a turn; the messages that are there as a whole.
    pub fn read(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        let (mut piece, mut total) = ([0; 1024], 0);
        while !self.broken && total < TURN {
            match (&*self.socket).read(&mut piece) {
                Ok(0) => self.broken = true,
                Ok(count) => {
                    self.came.extend(&piece[..count]);
                    total += count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.broken = true,
            }
            loop {
                match Message::take(&mut self.came) {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(_) => {
                        self.broken = true;
                        break;
                    }
                }
            }
        }
        messages
    }
}
