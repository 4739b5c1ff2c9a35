//! Configuration changes in the host's own bounded encoding. A change that a peer sent in an append
//! is decoded here before it may enter the log, and again when it is applied; no protobuf parser
//! ever sees a peer's bytes (stack.md 8).
//!
//! `[version 1][leave 0|1][count][kind, replica]…`, nothing nested and nothing left over.

use super::WireError;
use super::codec::{Reader, put_number};
use crate::id::ReplicaId;
use crate::limits::CONF_CHANGES_MAX;

const VERSION: u8 = 1;

/// A change of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Becomes a voter.
    AddVoter(ReplicaId),
    /// Becomes a learner.
    AddLearner(ReplicaId),
    /// Leaves.
    Remove(ReplicaId),
}

/// A change of a group's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfChange {
    /// Changes members, through joint consensus if there is more than one.
    Members(Vec<MemberChange>),
    /// Leaves the joint configuration.
    LeaveJoint,
}

impl ConfChange {
    /// The entry's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut buf = vec![VERSION];
        match self {
            Self::LeaveJoint => buf.extend_from_slice(&[1, 0]),
            Self::Members(changes) => {
                buf.push(0);
                put_number(&mut buf, changes.len() as u64);
                for change in changes {
                    let (kind, replica) = match change {
                        MemberChange::AddVoter(replica) => (0, replica),
                        MemberChange::AddLearner(replica) => (1, replica),
                        MemberChange::Remove(replica) => (2, replica),
                    };
                    buf.push(kind);
                    put_number(&mut buf, replica.to_u64());
                }
            }
        }
        buf
    }

    /// Reads an entry's bytes.
    ///
    /// # Errors
    /// [`WireError`] for anything that [`ConfChange::encode`] doesn't make.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        // Empty is what Raft itself appends to leave a joint configuration.
        if bytes.is_empty() {
            return Ok(Self::LeaveJoint);
        }
        // The longest there is, checked before the copy.
        if bytes.len() > 3 + 11 * CONF_CHANGES_MAX {
            return Err(WireError::BadConfChange);
        }
        let mut reader = Reader::new(bytes::Bytes::copy_from_slice(bytes));
        let change = read(&mut reader).map_err(|_| WireError::BadConfChange)?;
        if reader.is_at_end() {
            Ok(change)
        } else {
            Err(WireError::BadConfChange)
        }
    }
}

fn read(reader: &mut Reader) -> Result<ConfChange, WireError> {
    if reader.byte()? != VERSION {
        return Err(WireError::BadConfChange);
    }
    let leave = reader.flag()?;
    let count = reader.count(2, CONF_CHANGES_MAX)?;
    if leave != (count == 0) {
        return Err(WireError::BadConfChange);
    }
    if leave {
        return Ok(ConfChange::LeaveJoint);
    }
    let mut changes = Vec::with_capacity(count);
    for _ in 0..count {
        let kind = reader.byte()?;
        let replica = ReplicaId::new(reader.number()?);
        if replica.to_u64() == 0 {
            return Err(WireError::BadConfChange);
        }
        changes.push(match kind {
            0 => MemberChange::AddVoter(replica),
            1 => MemberChange::AddLearner(replica),
            2 => MemberChange::Remove(replica),
            _ => return Err(WireError::BadConfChange),
        });
    }
    Ok(ConfChange::Members(changes))
}
