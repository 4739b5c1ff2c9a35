//! Who has a say in whether a session may be, and what they make of it together: the transport,
//! which runs or shuts down; the peer's authority; and for bulk the control lane of its link. The
//! owner of a session (`lane_task`, `acceptor`) has one of these, and keeps the session's own wish
//! in step with it.

use tokio::sync::watch;

use crate::error::{AuthorityEnded, SessionEnd};
use crate::io::pump::{Never, Wish};

/// Waits for a change; a sender that is gone never changes anything.
pub(crate) async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn changed_if_any<T>(receiver: Option<&mut watch::Receiver<T>>) {
    match receiver {
        Some(receiver) => changed(receiver).await,
        None => std::future::pending().await,
    }
}

/// Everything that has a say in whether a session may be.
#[derive(Clone)]
pub(crate) struct Standing {
    /// The transport's.
    pub(crate) wish: watch::Receiver<Wish>,
    /// The peer's authority; of a peer that isn't configured there is none to end.
    pub(crate) revoked: Option<watch::Receiver<Option<AuthorityEnded>>>,
    /// Whether the control lane is up, where this depends on it.
    pub(crate) control_up: Option<watch::Receiver<bool>>,
}

impl Standing {
    /// What they make of it together.
    pub(crate) fn wish(&self) -> Wish {
        let revoked = self.revoked.as_ref().and_then(|revoked| *revoked.borrow());
        if let Some(why) = revoked {
            return Wish::End(why.into());
        }
        let wish = self.wish.borrow().clone();
        let control_down = self.control_up.as_ref().is_some_and(|up| !*up.borrow());
        if wish == Wish::Run && control_down {
            return Wish::End(SessionEnd::ControlEnded);
        }
        wish
    }

    /// Whether the transport shuts down, whatever else is.
    pub(crate) fn is_stopping(&self) -> bool {
        matches!(*self.wish.borrow(), Wish::Drain(_) | Wish::End(_))
    }

    /// Waits until one of them has changed since this was last awaited.
    ///
    /// Cancel safe: a change that came stays unseen until it was returned for.
    pub(crate) async fn changed(&mut self) {
        tokio::select! {
            () = changed(&mut self.wish) => {}
            () = changed_if_any(self.revoked.as_mut()) => {}
            () = changed_if_any(self.control_up.as_mut()) => {}
        }
    }

    /// Waits until a connection that is being made should be given up.
    pub(crate) async fn until_unwanted(mut self) -> SessionEnd {
        loop {
            match self.wish() {
                Wish::Run | Wish::HandOver => {}
                Wish::Drain(_) => return SessionEnd::ShutDown,
                Wish::End(end) => return end,
            }
            self.changed().await;
        }
    }

    /// Keeps a session's wish in step with all of them, for as long as it is polled. An end that
    /// was wished for once stands, whoever wished for it.
    pub(crate) async fn relay(mut self, to: watch::Sender<Wish>) -> Never {
        loop {
            let now = self.wish();
            to.send_if_modified(|standing| {
                let ends = matches!(standing, Wish::End(_));
                // One that is to be handed over doesn't begin frames again.
                let hands_over = *standing == Wish::HandOver && now == Wish::Run;
                let differs = *standing != now && !ends && !hands_over;
                if differs {
                    *standing = now;
                }
                differs
            });
            self.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> (
        watch::Sender<Wish>,
        watch::Sender<Option<AuthorityEnded>>,
        watch::Sender<bool>,
        Standing,
    ) {
        let (wish, revoked) = (watch::Sender::new(Wish::Run), watch::Sender::new(None));
        let control_up = watch::Sender::new(true);
        let standing = Standing {
            wish: wish.subscribe(),
            revoked: Some(revoked.subscribe()),
            control_up: Some(control_up.subscribe()),
        };
        (wish, revoked, control_up, standing)
    }

    #[test]
    fn authority_goes_before_control_and_control_before_running() {
        let (wish, revoked, control_up, standing) = standing();
        assert_eq!(standing.wish(), Wish::Run);
        control_up.send_replace(false);
        assert_eq!(standing.wish(), Wish::End(SessionEnd::ControlEnded));
        revoked.send_replace(Some(AuthorityEnded::Expired));
        let expired = Wish::End(AuthorityEnded::Expired.into());
        assert_eq!(standing.wish(), expired);
        wish.send_replace(Wish::End(SessionEnd::ShutDown));
        assert_eq!(standing.wish(), expired);
    }

    #[tokio::test]
    async fn an_end_that_was_wished_for_stands() {
        let (_wish, revoked, _control_up, standing) = standing();
        let (to, mut session) = watch::channel(Wish::Run);
        let relay = tokio::spawn(async move { match standing.relay(to).await {} });
        revoked.send_replace(Some(AuthorityEnded::Revoked));
        let end = Wish::End(AuthorityEnded::Revoked.into());
        assert_eq!(
            *session.wait_for(|wish| *wish != Wish::Run).await.unwrap(),
            end
        );
        revoked.send_replace(None);
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            *session.borrow(),
            end,
            "the session may not have looked yet"
        );
        relay.abort();
    }
}
