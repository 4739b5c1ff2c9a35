//! What became of a proposal or a read, as a client is told it (safety 23): `-REFUSED`, `-NOLEADER`
//! and `-TIMEOUT` only where it is proven that nothing happened and nothing will; `-UNKNOWN` for all
//! else that isn't a result.

use raft_host::error::{ProposalOutcome, ReadFailed, ReadFailure, Refusal, UnknownCause};
use raft_host::id::GroupId;

use crate::command::Outcome;
use crate::error::{ClientError, FullScope, Refused, UnknownReason};
use crate::resp::Reply;
use crate::session::RequestId;

/// The answer to a command that was proposed.
pub(super) fn of_proposal(
    group: GroupId,
    id: Option<RequestId>,
    outcome: ProposalOutcome,
) -> Reply {
    let unknown = |why| ClientError::Unknown { id, why }.into();
    match outcome {
        ProposalOutcome::Committed { result, .. } => match Outcome::decode(result) {
            Ok(outcome) => outcome.into(),
            // It was applied; what it came to didn't come through.
            Err(_) => unknown(UnknownReason::StoreFailed),
        },
        ProposalOutcome::Refused(refusal) => of_refusal(group, refusal).into(),
        ProposalOutcome::NotDurable { index } => ClientError::NotDurable { index }.into(),
        ProposalOutcome::Unknown { why, .. } => unknown(of_cause(why)),
        _ => unknown(UnknownReason::Unnamed),
    }
}

fn of_cause(why: UnknownCause) -> UnknownReason {
    match why {
        UnknownCause::Deadline => UnknownReason::Deadline,
        UnknownCause::Stopped => UnknownReason::ShuttingDown,
        UnknownCause::LeadershipLost => UnknownReason::LeadershipLost,
        UnknownCause::LinkLost => UnknownReason::LinkLost,
        UnknownCause::ResultTooLarge => UnknownReason::ResultTooLarge,
        _ => UnknownReason::Unnamed,
    }
}

/// The answer to what was not begun.
pub(super) fn of_refusal(group: GroupId, refusal: Refusal) -> ClientError {
    let full = |scope| Refused::Full { scope }.into();
    match refusal {
        Refusal::NotLeader { .. }
        | Refusal::NotReady { .. }
        | Refusal::Transferring
        | Refusal::NoLeader
        | Refusal::NotTaken { .. }
        | Refusal::Dropped => ClientError::NoLeader { group },
        Refusal::Late => ClientError::Timeout,
        Refusal::TooLarge { got, most } => {
            let (bytes, max) = (got, most);
            Refused::EntryTooLarge { bytes, max }.into()
        }
        Refusal::Uncommitted
        | Refusal::Unapplied { .. }
        | Refusal::TooManyWaiting { .. }
        | Refusal::LogRetained { .. } => full(FullScope::Group),
        Refusal::NodeBusy { .. } | Refusal::InboxFull { .. } | Refusal::LogRetainedBytes { .. } => {
            full(FullScope::Node)
        }
        Refusal::ForwardsFull { .. } => full(FullScope::Link),
        Refusal::LogFull => Refused::DiskFull.into(),
        Refusal::Backlogged => Refused::ArchiveLag.into(),
        Refusal::InlineFull { held, most } => Refused::InlineFull { held, most }.into(),
        Refusal::TooFewVoters { wanted, voters } => Refused::TooFewVoters { wanted, voters }.into(),
        Refusal::Overwritten { .. } => Refused::Superseded.into(),
        Refusal::Stopped => Refused::ShuttingDown.into(),
        Refusal::NoSuchGroup(_)
        | Refusal::NotAVoter(_)
        | Refusal::OutOfReach(_)
        | Refusal::Empty
        | Refusal::RequestIdTooLong { .. } => Refused::Host(refusal).into(),
        _ => Refused::Host(refusal).into(),
    }
}

/// The answer to a read that was not served: it has no effect, however it ended.
pub(super) fn of_failed_read(group: GroupId, failed: ReadFailed) -> ClientError {
    match failed {
        ReadFailed::Refused(refusal) => of_refusal(group, refusal),
        ReadFailed::Failed(ReadFailure::Deadline) => ClientError::Timeout,
        ReadFailed::Failed(ReadFailure::Stopped) => Refused::ShuttingDown.into(),
        ReadFailed::Unsupported(_) => Refused::NotCoherent { group }.into(),
        ReadFailed::Failed(_) | _ => ClientError::NoLeader { group },
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use raft_host::id::{Index, Term};

    use super::*;

    const GROUP: GroupId = GroupId::new(7);

    fn line(reply: &Reply) -> String {
        let mut out = BytesMut::new();
        reply.encode(&mut out);
        String::from_utf8(out.to_vec())
            .unwrap()
            .trim_end()
            .to_owned()
    }

    fn proposal(outcome: ProposalOutcome) -> String {
        let id = RequestId::parse(b"1700000000000-a").unwrap();
        line(&of_proposal(GROUP, Some(id), outcome))
    }

    #[test]
    fn what_was_handed_to_raft_is_never_called_refused_without_proof() {
        for why in [
            UnknownCause::Deadline,
            UnknownCause::LeadershipLost,
            UnknownCause::Stopped,
            UnknownCause::LinkLost,
            UnknownCause::ResultTooLarge,
        ] {
            let request_id = Bytes::new();
            let line = proposal(ProposalOutcome::Unknown { request_id, why });
            assert!(line.starts_with("-UNKNOWN 1700000000000-a "), "{line}");
        }
        let index = Index::new(9);
        let lost = ProposalOutcome::NotDurable { index };
        assert_eq!(proposal(lost), "-NOTDURABLE 9");
        let garbled = ProposalOutcome::Committed {
            index,
            result: Bytes::from_static(b"\xff"),
        };
        assert!(proposal(garbled).starts_with("-UNKNOWN "));
    }

    #[test]
    fn every_refusal_is_told_as_one() {
        let (term, leader) = (Term::new(3), raft_host::id::NodeId::new(2));
        let (waiting, most) = (9, 9);
        let full = Refusal::ForwardsFull { waiting, most };
        for (refusal, expected) in [
            (Refusal::NotLeader { leader: None }, "-NOLEADER 7"),
            (Refusal::NotReady { term }, "-NOLEADER 7"),
            (Refusal::Transferring, "-NOLEADER 7"),
            (Refusal::NoLeader, "-NOLEADER 7"),
            (Refusal::NotTaken { leader }, "-NOLEADER 7"),
            (full, "-REFUSED LinkFull"),
            (Refusal::Late, "-TIMEOUT"),
            (Refusal::Uncommitted, "-REFUSED GroupFull"),
            (Refusal::LogFull, "-REFUSED DiskFull"),
            (Refusal::Backlogged, "-REFUSED ArchiveLag"),
            (
                Refusal::InlineFull { held: 4, most: 4 },
                "-REFUSED InlineFull: 4 workers wait for acks, and no more than 4 may",
            ),
            (Refusal::Stopped, "-REFUSED ShuttingDown"),
        ] {
            let told = line(&of_proposal(GROUP, None, ProposalOutcome::Refused(refusal)));
            assert_eq!(told, expected);
        }
        let overwritten = Refusal::Overwritten {
            index: Index::new(1),
        };
        let told = proposal(ProposalOutcome::Refused(overwritten));
        assert_eq!(told, "-REFUSED Superseded");
        let absent = Refusal::NoSuchGroup(GROUP);
        assert!(proposal(ProposalOutcome::Refused(absent)).starts_with("-REFUSED HostRefused: "));
    }

    #[test]
    fn a_read_that_ends_late_is_without_effect() {
        let told = |failed| line(&of_failed_read(GROUP, failed).into());
        assert_eq!(told(ReadFailure::Deadline.into()), "-TIMEOUT");
        assert_eq!(told(ReadFailure::NoLeader.into()), "-NOLEADER 7");
        assert!(told(ReadFailed::Unsupported("x")).starts_with("-REFUSED NotCoherent"));
    }
}
