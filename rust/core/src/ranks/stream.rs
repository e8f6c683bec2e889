//! A connection that never blocks: messages in whole, in both directions.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::message::Message;

/// Most bytes kept for a peer that takes none. One that is stopped misses signs of life, which it has no use for.
const FULL: usize = 4096;

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

    /// Reads what has come; the messages that are there as a whole.
    pub fn read(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut piece = [0; 1024];
        while !self.broken {
            match (&*self.socket).read(&mut piece) {
                Ok(0) => self.broken = true,
                Ok(count) => self.came.extend(&piece[..count]),
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
