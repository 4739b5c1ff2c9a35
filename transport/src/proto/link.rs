//! Whether a link is up: this node holds a session to the peer, the peer holds one to this node, and
//! each has heard from the other that it is that very one (safety 19). Sessions come and go on their
//! own merits and carry frames all the while; a link tells the host when both directions are there,
//! and an operator when only one is.
//!
//! Knows session ids and times only. What a session is for, who dialled, and what the host makes of a
//! link that is down is left to others.
//!
//! Invariants: K1: up only with a session each way, of which the peer named the one it dialled. K2: a
//! one-way link is reported once, until it is up or down.

use std::time::{Duration, Instant};

use crate::id::SessionId;
use crate::proto::confirm::Held;

/// How a link stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// No session in either direction.
    #[default]
    Down,
    /// This node reaches the peer; that the peer reaches this node is not confirmed.
    OnlyOut,
    /// The peer reaches this node; this node doesn't reach the peer.
    OnlyIn,
    /// Both.
    Up,
}

/// An accepted session, and the one whose place it took without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenSession {
    /// The session.
    pub session: SessionId,
    /// The same peer's session before it, which it may still name in its confirms.
    pub before: Option<SessionId>,
}

/// What is known of a link's control sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkView {
    /// The session that this node holds to the peer.
    pub out: Option<SessionId>,
    /// The session that the peer dialled.
    pub taken: Option<TakenSession>,
    /// What the peer says it holds to this node, on the session that this node dialled.
    pub told: Option<Held>,
}

/// One link.
#[derive(Debug, Default)]
pub struct Link {
    view: LinkView,
    state: LinkState,
    /// Since when it is in one direction only.
    half_since: Option<Instant>,
    reported: bool,
}

impl LinkView {
    fn state(&self) -> LinkState {
        let named = self.told.and_then(|held| held.control);
        let confirmed = self.taken.is_some_and(|taken| {
            named.is_some() && (named == Some(taken.session) || named == taken.before)
        });
        match (self.out, self.taken) {
            (Some(_), _) if confirmed => LinkState::Up,
            (Some(_), _) => LinkState::OnlyOut,
            (None, Some(_)) => LinkState::OnlyIn,
            (None, None) => LinkState::Down,
        }
    }
}

impl Link {
    /// What is known has changed; gives the state if that has, too.
    pub fn on_view(&mut self, now: Instant, view: LinkView) -> Option<LinkState> {
        self.view = view;
        let state = view.state();
        if state == self.state {
            return None;
        }
        self.state = state;
        let half = matches!(state, LinkState::OnlyIn | LinkState::OnlyOut);
        // From one half to the other it is as long in one direction only.
        self.half_since = half.then(|| self.half_since.unwrap_or(now));
        self.reported &= half;
        Some(state)
    }

    /// What is known.
    #[must_use]
    pub const fn view(&self) -> LinkView {
        self.view
    }

    /// How it stands.
    #[must_use]
    pub const fn state(&self) -> LinkState {
        self.state
    }

    /// Says once that it has been one-way for longer than `limit`.
    pub fn report_one_way(&mut self, now: Instant, limit: Duration) -> Option<LinkState> {
        let since = self.half_since?;
        if self.reported || now.saturating_duration_since(since) < limit {
            return None;
        }
        self.reported = true;
        Some(self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn view(out: Option<u64>, taken: Option<u64>, told: Option<u64>) -> LinkView {
        let session = SessionId::new;
        LinkView {
            out: out.map(session),
            taken: taken.map(|taken| TakenSession {
                session: session(taken),
                before: None,
            }),
            told: told.map(|told| Held {
                control: Some(session(told)),
                bulk: None,
            }),
        }
    }

    #[test]
    fn it_is_up_only_with_both_sessions_and_the_peers_word_for_its_own() {
        let now = crate::testing::start();
        for (sessions, state) in [
            (view(None, None, None), LinkState::Down),
            (view(Some(1), None, None), LinkState::OnlyOut),
            (view(None, Some(2), None), LinkState::OnlyIn),
            (view(Some(1), Some(2), None), LinkState::OnlyOut),
            (view(Some(1), Some(2), Some(3)), LinkState::OnlyOut),
            (view(Some(1), None, Some(2)), LinkState::OnlyOut),
            (view(None, Some(2), Some(2)), LinkState::OnlyIn),
            (view(Some(1), Some(2), Some(2)), LinkState::Up),
        ] {
            let mut link = Link::default();
            link.on_view(now, sessions);
            assert_eq!(link.state(), state, "{sessions:?}");
        }
    }

    #[test]
    fn a_session_that_took_anothers_place_may_still_be_called_by_its_name() {
        let now = crate::testing::start();
        let mut sessions = view(Some(1), Some(3), Some(2));
        let mut link = Link::default();
        assert_eq!(link.on_view(now, sessions), Some(LinkState::OnlyOut));
        if let Some(taken) = &mut sessions.taken {
            taken.before = Some(SessionId::new(2));
        }
        assert_eq!(link.on_view(now, sessions), Some(LinkState::Up));
    }

    #[test]
    fn a_one_way_link_is_reported_once_and_again_after_it_was_up() {
        let start = crate::testing::start();
        let mut link = Link::default();
        let half = view(Some(1), None, None);
        assert_eq!(link.on_view(start, half), Some(LinkState::OnlyOut));
        assert_eq!(link.report_one_way(start + LIMIT / 2, LIMIT), None);
        // The other half instead: it is as long in one direction only.
        link.on_view(start + LIMIT / 2, view(None, Some(2), None));
        let late = start + LIMIT;
        assert_eq!(link.report_one_way(late, LIMIT), Some(LinkState::OnlyIn));
        assert_eq!(link.report_one_way(late + LIMIT, LIMIT), None);
        link.on_view(late, view(Some(1), Some(2), Some(2)));
        assert_eq!(link.report_one_way(late + LIMIT, LIMIT), None);
        link.on_view(late, half);
        assert_eq!(
            link.report_one_way(late + LIMIT, LIMIT),
            Some(LinkState::OnlyOut)
        );
    }
}
