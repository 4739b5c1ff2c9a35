//! Between clients and nodes: a request is proposed or read where it arrives, and what comes of it
//! goes back. What a client does with the answer.

use std::num::NonZeroU8;

use bytes::Bytes;
use multigroup::command::Entry;
use raft_host::error::Refusal;
use raft_host::id::{ProposalId, ReadId, UnixMillis};
use raft_host::proto::host::{Forwarding, Proposal};
use raft_host::proto::waiters::Policy;

use super::World;
use super::clients::{Answer, body_of, group_of, identity_of, read_outcome};
use super::clock::MS;
use super::events::Event;
use crate::oracle::linear::{Answered, Asked};

/// One attempt's number over all clients.
#[must_use]
pub(super) fn attempt_number(client: usize, attempt: u64) -> u64 {
    ((client as u64) << 40) | attempt
}

impl World {
    /// A client begins something, or gives up waiting for this attempt.
    pub(super) fn client(&mut self, client: usize, attempt: u64) {
        if self.clients[client].attempt != attempt {
            return;
        }
        if self.clients[client].doing.is_some() && !self.clients[client].sent {
            return self.send(client);
        }
        if self.clients[client].doing.is_some() {
            // No answer came in time.
            return self.answered(client, attempt, Answer::Unknown);
        }
        if self.resting {
            return;
        }
        if !self.mended && self.script.is_some_and(|script| script.hushes()) {
            let event = Event::Client { client, attempt };
            return self.events.push(self.now + 5 * MS, event);
        }
        let (shape, histories) = (&self.shape, &mut self.histories);
        self.clients[client].begin(client, self.now, shape, histories);
        self.send(client);
    }

    fn send(&mut self, client: usize) {
        let (attempt, node) = self.clients[client].next_attempt(self.shape.nodes);
        // What was sent may arrive when its sender has gone on to something else.
        if let Some(doing) = self.clients[client].doing.clone() {
            self.sent.insert((client, attempt), doing);
        }
        let after = self.network.delay();
        let event = Event::Request {
            client,
            attempt,
            node,
        };
        self.events.push(self.now + after, event);
        let patience = self.shape.request_limit.as_nanos() * 3 / 2;
        let patience = u64::try_from(patience).unwrap_or(MS) + 400 * MS;
        let event = Event::Client { client, attempt };
        self.events.push(self.now + patience, event);
    }

    pub(super) fn tell(&mut self, client: usize, attempt: u64, answer: Answer) {
        let after = self.network.delay();
        let event = Event::Answer {
            client,
            attempt,
            answer,
        };
        self.events.push(self.now + after, event);
    }

    /// A request reaches a node.
    pub(super) fn request(&mut self, client: usize, attempt: u64, at: usize) {
        let Some(mut node) = self.nodes[at].take() else {
            // The connection is refused: it was never sent.
            if self.powered[at] {
                self.tell(client, attempt, Answer::Refused);
            }
            return;
        };
        let Some(doing) = self.sent.get(&(client, attempt)).cloned() else {
            self.nodes[at] = Some(node);
            return;
        };
        let now = self.local(at);
        let group = group_of(doing.key, self.shape.group_count);
        let deadline = now + self.shape.request_limit;
        let name = node.next_id();
        node.core
            .set_wall(UnixMillis::new(self.clocks[at].wall_ms(self.now)));
        let begun = match body_of(&doing) {
            Some(body) => {
                let entry = Entry {
                    identity: identity_of(&doing, &self.shape),
                    body,
                };
                let Ok(data) = entry.encode() else {
                    self.fail("a small entry is too large")
                };
                let number = attempt_number(client, attempt);
                self.attempts.entry(number).or_default();
                let proposal = Proposal {
                    id: ProposalId::new(name),
                    data,
                    context: Bytes::copy_from_slice(&number.to_le_bytes()),
                    deadline,
                    forwarding: if node.dice.chance(800) {
                        Forwarding::Allowed
                    } else {
                        Forwarding::Never
                    },
                    policy: policy(number),
                };
                node.proposals
                    .insert(proposal.id, (client, attempt, deadline));
                let proposed = node.core.propose(now, group, proposal);
                if proposed.is_err() {
                    node.proposals.remove(&ProposalId::new(name));
                }
                proposed
            }
            None => {
                let id = ReadId::new(name);
                node.reads.insert(id, (client, attempt, deadline));
                let asked = node.core.read_index(now, group, id, deadline);
                if asked.is_err() {
                    node.reads.remove(&id);
                }
                asked
            }
        };
        if let Err(refusal) = begun {
            self.on_refusal(at, client, attempt, &refusal);
        }
        self.nodes[at] = Some(node);
        self.turn(at);
    }

    /// Refused at once: it must never be applied.
    fn on_refusal(&mut self, at: usize, client: usize, attempt: u64, refusal: &Refusal) {
        self.trace.line(self.now, Some(at), None, || {
            format!("refuses client {client}: {refusal}")
        });
        if let Some(standing) = self.attempts.get_mut(&attempt_number(client, attempt)) {
            standing.refused = true;
        }
        self.tell(client, attempt, Answer::Refused);
    }

    /// An answer reaches a client.
    pub(super) fn answered(&mut self, client: usize, attempt: u64, answer: Answer) {
        if self.clients[client].attempt != attempt {
            // It had given up on that one.
            return;
        }
        let Some(mut doing) = self.clients[client].doing.clone() else {
            return;
        };
        let group = group_of(doing.key, self.shape.group_count);
        self.trace.line(self.now, None, Some(group.to_u64()), || {
            let (asked, key) = (doing.asked, doing.key);
            format!("client {client} hears of {asked:?} {key:?}: {answer:?}")
        });
        let mut ends = true;
        match answer {
            Answer::Committed(bytes) => match read_outcome(bytes) {
                Ok(Some(answered)) => {
                    self.histories.returned(&doing, self.now, answered);
                    return self.rest(client);
                }
                // The id is too old, or ahead: this attempt did nothing.
                Ok(None) => {}
                Err(what) => self.fail(&what),
            },
            Answer::Value(value) => {
                let answered = value.map_or(Answered::Nothing, Answered::Number);
                self.histories.returned(&doing, self.now, answered);
                return self.rest(client);
            }
            Answer::Refused => ends = false,
            Answer::Unknown => {
                doing.in_doubt |= doing.asked != Asked::Get;
                ends = false;
            }
        }
        self.clients[client].doing = Some(doing.clone());
        if ends || !self.clients[client].tries_again() {
            self.histories.gave_up(&doing);
            return self.rest(client);
        }
        if doing.in_doubt {
            self.histories.repeated += 1;
        }
        let after = self.clients[client].pause();
        // Another number: answers to the last attempt count no more.
        self.clients[client].attempt += 1;
        self.clients[client].sent = false;
        let attempt = self.clients[client].attempt;
        let event = Event::Client { client, attempt };
        self.events.push(self.now + after, event);
    }

    fn rest(&mut self, client: usize) {
        self.trace.mix(&[client as u64, self.histories.answered]);
        self.clients[client].doing = None;
        self.clients[client].sent = false;
        self.clients[client].attempt += 1;
        let attempt = self.clients[client].attempt;
        let shape = &self.shape;
        let after = self.clients[client].think(shape);
        let event = Event::Client { client, attempt };
        self.events.push(self.now + after, event);
    }
}

/// One in eight asks for more acks than the quorum gives, or for as many by name.
pub(super) fn policy(number: u64) -> Policy {
    match number % 16 {
        3 => NonZeroU8::new(2).map_or(Policy::Quorum, Policy::AtLeast),
        11 => NonZeroU8::new(3).map_or(Policy::Quorum, Policy::AtLeast),
        _ => Policy::Quorum,
    }
}
