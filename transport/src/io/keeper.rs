//! Keeps credentials and authority in step with files and time (T9): it takes over what changed on
//! disk as one consistent set, judges every peer and session anew when trust changed or a
//! certificate's time ended, and warns of what will lapse.
//!
//! Started by `Transport`, one for each; ends with it. If it panics, sessions live on under what was
//! last loaded, nothing is reloaded and nobody is cut off any more, which the log says.
//!
//! Left to others: what a set must be to be used (`credentials`), ending sessions and items
//! (`lane_task`, `acceptor`).
//!
//! - A1: a set that can't be used changes nothing: the old one stays.
//! - A2: what is judged is a certificate that some session came up with. A peer loses its authority
//!   with the latest one; a session under an older one ends alone, and is dialled again.
//! - A3: a revocation list that is over its time lets nobody in anew and puts nobody out: it says
//!   nothing against those who are in.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::spawn_blocking;

use crate::error::{SessionEnd, TlsFault};
use crate::id::Lane;
use crate::io::clock;
use crate::io::credentials::{
    CredentialError, Credentials, FilesStamp, PeerCertificate, Presented,
};
use crate::io::events::Event;
use crate::io::pump::end_session;
use crate::io::shared::{PeerShared, Shared};
use crate::limits::{CREDENTIAL_LOOK, CREDENTIAL_RETRY};
use crate::proto::lapse::LapseWatch;
use crate::sync::lock;

/// What was found when the files were last read, where it wasn't taken over.
struct Refused {
    stamp: FilesStamp,
    fault: CredentialError,
    /// How many looks in a row found the same files.
    looks: u32,
}

pub(crate) struct Keeper {
    shared: Arc<Shared>,
    refused: Option<Refused>,
    lapses: LapseWatch,
    /// The last second of the certificate that lapses first, of those that are in use and weren't
    /// over when they were last judged.
    good_until: i64,
    /// When that was.
    judged: i64,
}

fn seconds(wall: SystemTime) -> i64 {
    let since = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            refused: None,
            lapses: LapseWatch::default(),
            good_until: i64::MAX,
            judged: i64::MIN,
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let changed = self.look_at_files().await;
            let wall = clock::wall();
            if changed || seconds(wall) > self.good_until {
                self.judge(wall);
                self.judged = seconds(wall);
            }
            self.good_until = self.first_lapse();
            self.warn(wall);
            self.report_one_way();
            tokio::time::sleep(self.until_next_look()).await;
        }
    }

    /// Until the files are looked at again, or a certificate is over if that is sooner.
    fn until_next_look(&self) -> Duration {
        let end = u64::try_from(self.good_until.saturating_add(1)).unwrap_or(u64::MAX);
        let end = UNIX_EPOCH.checked_add(Duration::from_secs(end));
        let left = end.and_then(|end| end.duration_since(clock::wall()).ok());
        left.map_or(CREDENTIAL_LOOK, |left| left.min(CREDENTIAL_LOOK))
            .max(Duration::from_millis(1))
    }

    /// Takes over what changed; says whether something was.
    async fn look_at_files(&mut self) -> bool {
        let current = self.shared.credentials();
        let files = current.files().clone();
        // A file system may hang, which must not be the runtime's business.
        let Ok(stamp) = spawn_blocking(move || files.stamp()).await else {
            return false;
        };
        if stamp == *current.stamp() {
            self.forget_refused();
            return false;
        }
        if let Some(refused) = &mut self.refused
            && refused.stamp == stamp
        {
            refused.looks = refused.looks.saturating_add(1);
            let retry = CREDENTIAL_RETRY.div_duration_f64(CREDENTIAL_LOOK) as u32;
            // The second look decides that it is no renewal under way.
            if refused.looks == 1 {
                let fault = refused.fault.clone();
                let mut reloads = lock(&self.shared.reloads);
                reloads.refused += 1;
                reloads.fault = Some(fault.to_string());
                drop(reloads);
                self.shared.tell(Event::CredentialsRefused { fault });
            }
            if refused.looks % retry != 0 {
                return false;
            }
        }
        let wall = clock::wall();
        let loading = current.clone();
        let Ok(loaded) = spawn_blocking(move || load(&loading, wall)).await else {
            return false;
        };
        match loaded {
            Ok(loaded) => self.take_over(&current, loaded),
            Err(fault) => {
                let looks = self.refused.take().filter(|refused| refused.stamp == stamp);
                let looks = looks.map_or(0, |refused| refused.looks);
                self.refused = Some(Refused {
                    stamp,
                    fault,
                    looks,
                });
                false
            }
        }
    }

    fn forget_refused(&mut self) {
        if self.refused.take().is_some() {
            lock(&self.shared.reloads).fault = None;
        }
    }

    fn take_over(&mut self, current: &Credentials, loaded: Credentials) -> bool {
        let same = loaded.has_content_of(current);
        let same_leaf = loaded.has_leaf_of(current);
        let leaf = loaded.facts().clone();
        *lock(&self.shared.credentials) = loaded;
        self.forget_refused();
        if same {
            return false;
        }
        lock(&self.shared.reloads).taken += 1;
        self.shared.tell(Event::CredentialsReloaded { leaf });
        for peer in self.shared.peers.values() {
            // What kept a peer away may be gone (T12).
            peer.dial_now.send_modify(|count| *count += 1);
            if !same_leaf {
                for lane in Lane::ALL {
                    peer.lane(lane).renew.send_modify(|count| *count += 1);
                }
            }
        }
        true
    }

    /// Judges every peer by its latest certificate, and every session by its own.
    fn judge(&self, wall: SystemTime) {
        let credentials = self.shared.credentials();
        let lost = |certificate: &PeerCertificate, presented| {
            let judged = credentials.recheck(certificate, presented, wall);
            judged.err().as_ref().and_then(TlsFault::authority_ended)
        };
        for peer in self.shared.peers.values() {
            let latest = lock(&peer.certificate).clone();
            let Some(latest) = latest else { continue };
            match lost(&latest, Presented::AsClient) {
                Some(why) => {
                    if peer.revoke_certificate(why) {
                        let peer = peer.id;
                        self.shared.tell(Event::AuthorityLost { peer, why });
                    }
                }
                None => {
                    if peer.restore_certificate() {
                        self.shared.tell(Event::AuthorityRegained { peer: peer.id });
                    }
                }
            }
            if peer.revoked.borrow().is_some() {
                continue;
            }
            for lane in Lane::ALL {
                let live = lock(&peer.lane(lane).live);
                if let Some(live) = live.as_ref()
                    && let Some(why) = lost(&live.certificate, Presented::AsServer)
                {
                    end_session(&live.wish, SessionEnd::Certificate(why));
                }
            }
        }
        for ((peer, _), session) in lock(&self.shared.inbound).iter() {
            let peer = self.shared.peers.get(peer);
            if peer.is_some_and(|peer| peer.revoked.borrow().is_some()) {
                continue;
            }
            if let Some(why) = lost(&session.certificate, Presented::AsClient) {
                end_session(&session.wish, SessionEnd::Certificate(why));
            }
        }
    }

    /// The last second of what lapses first, of what hasn't been found to be over.
    fn first_lapse(&self) -> i64 {
        let credentials = self.shared.credentials();
        let mut ends = Vec::new();
        let mut of = |certificate: &PeerCertificate| ends.push(credentials.good_until(certificate));
        for peer in self.shared.peers.values() {
            each_certificate(peer, &mut of);
        }
        for session in lock(&self.shared.inbound).values() {
            of(&session.certificate);
        }
        ends.into_iter()
            .filter(|end| *end >= self.judged)
            .min()
            .unwrap_or(i64::MAX)
    }

    /// A link that has been one-way for too long is told of, by its direction (safety 19).
    fn report_one_way(&self) {
        let limit = self.shared.config.tuning.dialback_timeout();
        for peer in self.shared.peers.values() {
            let state = lock(&peer.link).report_one_way(clock::now(), limit);
            if let Some(state) = state {
                let peer = peer.id;
                self.shared.tell(Event::OneWay { peer, state });
            }
        }
    }

    fn warn(&mut self, wall: SystemTime) {
        let lapses = self.shared.credentials().lapses();
        for warning in self.lapses.look(seconds(wall), &lapses) {
            let (what, left_s) = (&warning.what, warning.left_s);
            if left_s < 0 {
                tracing::error!(left_s, "{what} has expired; renew it");
            } else {
                tracing::warn!(left_s, "{what} expires in {}; renew it", in_words(left_s));
            }
        }
    }
}

fn each_certificate(peer: &PeerShared, of: &mut impl FnMut(&PeerCertificate)) {
    if let Some(latest) = lock(&peer.certificate).as_ref() {
        of(latest);
    }
    for lane in Lane::ALL {
        if let Some(live) = lock(&peer.lane(lane).live).as_ref() {
            of(&live.certificate);
        }
    }
}

/// A set that is over its time is no better than one in use, unless that is over its time too: then
/// lists and CAs are taken over all the same.
fn load(current: &Credentials, wall: SystemTime) -> Result<Credentials, CredentialError> {
    let (files, identity) = (current.files(), &current.facts().identity);
    if current.is_leaf_in_time(wall) {
        Credentials::load(files, identity, wall)
    } else {
        Credentials::load_at_any_age(files, identity, wall)
    }
}

fn in_words(seconds: i64) -> String {
    match seconds {
        ..=119 => format!("{seconds} seconds"),
        120..=7199 => format!("{} minutes", seconds / 60),
        7200..=172_799 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
