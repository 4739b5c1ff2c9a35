//! Requests of callers and their ends: each is answered once, by what the core makes of it, by the
//! refusal that stands against it, or by the shard's end.

use std::time::Instant;

use super::Shard;
use crate::error::{Outcome, ProposalOutcome, ReadFailed, ReadOutcome, Refusal};
use crate::id::{GroupId, ProposalId, ReadId};
use crate::io::inbox::Work;
use crate::io::requests::{Request, answer};
use crate::io::workers::Item;
use crate::limits::REQUEST_ID_BYTES_MAX;
use crate::proto::host::Proposal;

impl Shard {
    pub(super) fn on_request(&mut self, now: Instant, request: Request) {
        match request {
            Request::Read {
                group,
                deadline,
                reply,
            } => {
                self.next_id += 1;
                let id = ReadId::new(self.next_id);
                match self.core.read_index(now, group, id, deadline) {
                    Ok(()) => {
                        self.reads.insert(id, reply);
                    }
                    Err(refusal) => answer(reply, Err(refusal.into())),
                }
            }
            Request::Transfer { group, to, reply } => {
                answer(reply, self.core.transfer_leader(now, group, to));
            }
            Request::Status { group, reply } => answer(reply, self.group_status(group)),
            Request::Create {
                config,
                machine,
                reply,
            } => answer(reply, self.create_group(now, &config, machine)),
            Request::Committed {
                group,
                first,
                bytes_max,
                reply,
            } => answer(reply, self.core.committed(group, first, bytes_max)),
            Request::Led { reply } => answer(reply, self.core.led().collect()),
            Request::ReleaseLog { group, through } => self.core.release_log(now, group, through),
            Request::SetAdmission(admission) => self.core.set_admission(now, admission),
            Request::Drain { until, reply } => self.drain = Some((until, reply)),
        }
    }

    /// Hands a published proposal to the core, which answers for it from now on.
    pub(super) fn on_item(&mut self, now: Instant, item: Item) {
        self.next_id += 1;
        let id = ProposalId::new(self.next_id);
        let (owed, request_id) = (item.owed, item.request_id.clone());
        let proposal = Proposal {
            id,
            data: item.command,
            context: item.request_id,
            deadline: item.deadline,
            forwarding: item.forwarding,
            policy: item.policy,
        };
        match self.propose(now, item.group, proposal) {
            Ok(()) => {
                self.proposals.insert(id, (owed, request_id));
            }
            Err(refusal) => {
                self.stats.proposals.refused += 1;
                owed.answer(ProposalOutcome::Refused(refusal));
            }
        }
    }

    fn propose(&mut self, now: Instant, group: GroupId, proposal: Proposal) -> Result<(), Refusal> {
        if proposal.data.is_empty() {
            return Err(Refusal::Empty);
        }
        let got = proposal.context.len();
        if got > REQUEST_ID_BYTES_MAX {
            let most = REQUEST_ID_BYTES_MAX;
            return Err(Refusal::RequestIdTooLong { got, most });
        }
        self.core.propose(now, group, proposal)
    }

    pub(super) fn on_proposal_ended(&mut self, id: ProposalId, outcome: Outcome) {
        let Some((owed, request_id)) = self.proposals.remove(&id) else {
            return;
        };
        let counts = &mut self.stats.proposals;
        let outcome = match outcome {
            Outcome::Committed { index, result } => {
                counts.committed += 1;
                ProposalOutcome::Committed { index, result }
            }
            Outcome::Refused { why } => {
                counts.refused += 1;
                ProposalOutcome::Refused(why)
            }
            Outcome::NotDurable { index } => {
                counts.not_durable += 1;
                ProposalOutcome::NotDurable { index }
            }
            Outcome::Unknown { why } => {
                counts.unknown += 1;
                ProposalOutcome::Unknown { request_id, why }
            }
        };
        owed.answer(outcome);
    }

    pub(super) fn on_read_ended(&mut self, id: ReadId, outcome: ReadOutcome) {
        if let Some(reply) = self.reads.remove(&id) {
            let outcome = match outcome {
                ReadOutcome::Ready { index } => Ok(index),
                ReadOutcome::Failed { why } => Err(why.into()),
            };
            answer(reply, outcome);
        }
    }

    /// Refuses what was never looked at, as the shard ends.
    pub(super) fn refuse(&mut self, work: Work) {
        for part in work.frames {
            if let Some((answer, item)) = part.answer {
                answer.settle(item, Err(transport::RefusalReason::ShuttingDown));
            }
        }
        for item in work.items {
            item.owed.answer(ProposalOutcome::Refused(Refusal::Stopped));
        }
        for request in work.requests {
            match request {
                Request::Read { reply, .. } => {
                    answer(reply, Err(ReadFailed::Refused(Refusal::Stopped)));
                }
                Request::Transfer { reply, .. } => answer(reply, Err(Refusal::Stopped)),
                // Dropped unanswered, they say the same.
                Request::Status { .. }
                | Request::Create { .. }
                | Request::Committed { .. }
                | Request::Led { .. }
                | Request::ReleaseLog { .. }
                | Request::SetAdmission(_)
                | Request::Drain { .. } => {}
            }
        }
    }
}
