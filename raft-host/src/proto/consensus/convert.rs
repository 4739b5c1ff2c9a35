//! The crate's messages, entries and configuration changes to and from ours. Nothing is parsed here:
//! the crate's types are used as plain structures.

use bytes::Bytes;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, EntryType, HardState, Message,
    MessageType,
};

use crate::id::{GroupId, Index, ReplicaId, Term};
use crate::log::api::{self, EntryKind, LogEntry};
use crate::proto::wire::{Append, ConfChange, GroupBody, GroupMessage, Header, MemberChange};

pub(super) fn to_conf_change(change: &ConfChange) -> ConfChangeV2 {
    let mut v2 = ConfChangeV2::default();
    let ConfChange::Members(changes) = change else {
        return v2;
    };
    let changes: Vec<_> = changes
        .iter()
        .map(|change| {
            let (kind, replica) = match change {
                MemberChange::AddVoter(replica) => (ConfChangeType::AddNode, replica),
                MemberChange::AddLearner(replica) => (ConfChangeType::AddLearnerNode, replica),
                MemberChange::Remove(replica) => (ConfChangeType::RemoveNode, replica),
            };
            let mut single = ConfChangeSingle::default();
            single.set_change_type(kind);
            single.set_node_id(replica.to_u64());
            single
        })
        .collect();
    v2.set_changes(changes.into());
    v2
}

pub(super) fn from_hard_state(state: &HardState) -> api::HardState {
    api::HardState {
        term: Term::new(state.get_term()),
        vote: (state.get_vote() != 0).then(|| ReplicaId::new(state.get_vote())),
        commit: Index::new(state.get_commit()),
    }
}

/// A configuration change stands in `context`, in our encoding: `data` holds the crate's only on
/// the way through `propose_conf_change`, and is never stored or sent.
pub(super) fn from_entry(entry: &Entry) -> LogEntry {
    let (index, term) = (Index::new(entry.index), Term::new(entry.term));
    if entry.get_entry_type() == EntryType::EntryNormal {
        let (data, context) = (entry.data.clone(), entry.context.clone());
        return LogEntry {
            index,
            term,
            kind: EntryKind::Normal,
            data,
            context,
        };
    }
    let (data, context) = (entry.context.clone(), Bytes::new());
    LogEntry {
        index,
        term,
        kind: EntryKind::ConfChange,
        data,
        context,
    }
}

pub(super) fn to_entry(entry: LogEntry) -> Entry {
    let mut out = Entry::default();
    (out.index, out.term) = (entry.index.to_u64(), entry.term.to_u64());
    match entry.kind {
        EntryKind::Normal => (out.data, out.context) = (entry.data, entry.context),
        EntryKind::ConfChange => {
            out.set_entry_type(EntryType::EntryConfChangeV2);
            out.context = entry.data;
        }
    }
    out
}

/// Raft's own heartbeats and their answers go nowhere: rounds stand in for them (H4).
pub(super) fn from_message(group: GroupId, mut m: Message) -> Option<GroupMessage> {
    let header = Header {
        group,
        from: ReplicaId::new(m.from),
        to: ReplicaId::new(m.to),
        term: Term::new(m.term),
    };
    let index = Index::new(m.index);
    let kind = m.get_msg_type();
    let body = if kind == MessageType::MsgRequestPreVote {
        GroupBody::PreVote {
            last_index: index,
            last_term: Term::new(m.log_term),
        }
    } else if kind == MessageType::MsgRequestPreVoteResponse {
        GroupBody::PreVoteAnswer { granted: !m.reject }
    } else if kind == MessageType::MsgRequestVote {
        let transfer = m.context == raft::CAMPAIGN_TRANSFER;
        GroupBody::Vote {
            last_index: index,
            last_term: Term::new(m.log_term),
            transfer,
        }
    } else if kind == MessageType::MsgRequestVoteResponse {
        GroupBody::VoteAnswer { granted: !m.reject }
    } else if kind == MessageType::MsgTimeoutNow {
        GroupBody::TimeoutNow
    } else if kind == MessageType::MsgAppend {
        GroupBody::Append(Append {
            prev_index: index,
            prev_term: Term::new(m.log_term),
            commit: Index::new(m.commit),
            entries: m.take_entries().iter().map(from_entry).collect(),
        })
    } else if kind == MessageType::MsgAppendResponse && m.reject {
        GroupBody::Reject {
            rejected: index,
            hint: Index::new(m.reject_hint),
            hint_term: Term::new(m.log_term),
            commit: Index::new(m.commit),
        }
    } else if kind == MessageType::MsgAppendResponse {
        GroupBody::Ack {
            index,
            commit: Index::new(m.commit),
        }
    } else {
        return None;
    };
    Some(GroupMessage { header, body })
}
