//! A non-blocking connection that sends and receives whole messages.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::message::{HELLO_LEN, Message};

/// The number of buffered bytes beyond which heartbeats are dropped, because the other rank does not read.
const MOST_BUFFERED: usize = 4096;

const MOST_READ: usize = 64 << 10;

#[derive(Debug)]
pub struct RankStream {
    socket: Arc<TcpStream>,
    came: Vec<u8>,
    goes: Vec<u8>,
    broken: bool,
}

impl RankStream {
    pub fn new(socket: TcpStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket: Arc::new(socket), came: Vec::new(), goes: Vec::new(), broken: false })
    }

    pub fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    pub fn broken(&self) -> bool {
        self.broken
    }

    pub fn congested(&self) -> bool {
        !self.goes.is_empty()
    }

    pub fn send(&mut self, message: &Message) {
        if *message != Message::Beat || self.goes.len() < MOST_BUFFERED {
            message.encode(&mut self.goes);
        }
        self.flush();
    }

    /// Sends buffered bytes. A failed write does not mark the connection as broken, because messages from the other
    /// rank may still be readable.
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

    /// Reads at most one [`Message::Hello`] from an unidentified connection.
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

    pub fn read(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        let (mut piece, mut total) = ([0; 1024], 0);
        while !self.broken && total < MOST_READ {
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
