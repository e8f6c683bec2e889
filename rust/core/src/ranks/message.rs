//! Defines the messages between hub and members. A message consists of a kind, a length, and little-endian fields.

use super::{Fault, Verdict};

/// A secret that proves the identity of a rank, because any program can connect to the port.
pub type Token = [u8; 16];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// The first message of a member (a rank other than 0), which also submits the member's value, 0, for the first
    /// operation.
    Hello { token: Token, rank: u32 },
    /// The first message of the hub, which proves the hub's identity to the member.
    Welcome { token: Token },
    /// The value that a rank submits for an operation.
    Value { operation: u64, value: i64 },
    /// The minimum of the values of all ranks, which is the result of an operation.
    Least { operation: u64, value: i64 },
    /// A heartbeat, which shows that the process of the sender is running.
    Beat,
    /// A member's wait for an operation has timed out.
    Late { operation: u64 },
    /// A member abandons its current operation.
    Left,
    /// The sender leaves the group normally.
    Bye,
    /// The current operation and all later operations fail.
    Failed(Verdict),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

const HEAD: usize = 3;

/// The maximum number of bytes that the hub reads from an unidentified connection.
pub const HELLO_LEN: usize = HEAD + 16 + 4;

/// The maximum length of a message in bytes, without the fields for its kind and length.
const LONGEST: usize = u16::MAX as usize;

const FAULTS: [Fault; 6] = [Fault::Absent, Fault::Late, Fault::Lost, Fault::Silent, Fault::Parted, Fault::Left];

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 1,
            Self::Welcome { .. } => 2,
            Self::Value { .. } => 3,
            Self::Least { .. } => 4,
            Self::Beat => 5,
            Self::Late { .. } => 6,
            Self::Left => 7,
            Self::Bye => 8,
            Self::Failed(_) => 9,
        }
    }

    pub fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend([self.kind(), 0, 0]);
        match self {
            Self::Hello { token, rank } => {
                into.extend(token);
                into.extend(rank.to_le_bytes());
            }
            Self::Welcome { token } => into.extend(token),
            Self::Value { operation, value } | Self::Least { operation, value } => {
                into.extend(operation.to_le_bytes());
                into.extend(value.to_le_bytes());
            }
            Self::Late { operation } => into.extend(operation.to_le_bytes()),
            Self::Failed(verdict) => {
                let fault = FAULTS.iter().position(|&fault| fault == verdict.fault).expect("all faults are listed");
                into.push(fault as u8);
                into.extend(verdict.by.to_le_bytes());
                for rank in verdict.ranks.iter().take((LONGEST - 5) / 4) {
                    into.extend(rank.to_le_bytes());
                }
            }
            Self::Beat | Self::Left | Self::Bye => {}
        }
        let length = (into.len() - start - HEAD) as u16;
        into[start + 1..start + HEAD].copy_from_slice(&length.to_le_bytes());
    }

    pub fn take(from: &mut Vec<u8>) -> Result<Option<Self>, Damaged> {
        let Some(head) = from.first_chunk::<HEAD>() else { return Ok(None) };
        let end = HEAD + usize::from(u16::from_le_bytes([head[1], head[2]]));
        if !(1..=9).contains(&head[0]) {
            return Err(Damaged);
        }
        if from.len() < end {
            return Ok(None);
        }
        let message = Self::decode(head[0], &from[HEAD..end])?;
        from.drain(..end);
        Ok(Some(message))
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Self, Damaged> {
        let mut rest = body;
        let message = match kind {
            1 => Self::Hello { token: field(&mut rest)?, rank: u32::from_le_bytes(field(&mut rest)?) },
            2 => Self::Welcome { token: field(&mut rest)? },
            3 | 4 => {
                let operation = u64::from_le_bytes(field(&mut rest)?);
                let value = i64::from_le_bytes(field(&mut rest)?);
                if kind == 3 { Self::Value { operation, value } } else { Self::Least { operation, value } }
            }
            5 => Self::Beat,
            6 => Self::Late { operation: u64::from_le_bytes(field(&mut rest)?) },
            7 => Self::Left,
            8 => Self::Bye,
            9 => {
                let [fault] = field(&mut rest)?;
                let fault = *FAULTS.get(usize::from(fault)).ok_or(Damaged)?;
                let by = u32::from_le_bytes(field(&mut rest)?);
                let (ranks, over) = rest.as_chunks::<4>();
                if ranks.is_empty() || !over.is_empty() {
                    return Err(Damaged);
                }
                rest = &[];
                Self::Failed(Verdict { fault, ranks: ranks.iter().map(|rank| u32::from_le_bytes(*rank)).collect(), by })
            }
            _ => return Err(Damaged),
        };
        if rest.is_empty() { Ok(message) } else { Err(Damaged) }
    }
}

fn field<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Damaged> {
    rest.split_off(..N).and_then(|field| field.try_into().ok()).ok_or(Damaged)
}
