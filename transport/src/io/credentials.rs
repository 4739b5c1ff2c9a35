//! A node's credentials: its chain and key, the CA set, the revocation lists. They are loaded as
//! one consistent set, checked against each other and against the node they are for, and turned
//! into one TLS configuration for each connection. With `io/tls.rs` this is all that knows rustls.
//!
//! What is left to others: when to reload (the transport), driving a handshake (`io/tls.rs`), and
//! whether a node with a good certificate is wanted here (`proto/authority.rs`).
//!
//! - C1: a `Credentials` never changes. A reload makes another, and connections begun under the
//!   old one are judged anew by [`Credentials::recheck`].
//! - C2: whatever loads can be used: the key is the leaf's, the leaf names this node, our own
//!   peers' rules accept it for both sides of a connection.
//! - C3: no connection is resumed, so none escapes a newer revocation list.

mod certificate;
mod error;
mod files;
mod handshake;
#[cfg(test)]
mod tests;
mod trust;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{self, Digest};
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, ServerConfig, WantsVerifier};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_parser::certificate::X509Certificate;
use x509_parser::revocation_list::CertificateRevocationList;

use self::certificate::{Particulars, parse, printable};
use self::files::PemSet;
use self::trust::{Authority, SignedList, Trust, signed, unix_time};
use crate::error::TlsFault;
use crate::id::NodeIdentity;
use crate::proto::lapse::Lapse;

pub use self::certificate::{CertificateFacts, PeerCertificate, identity_of};
pub use self::error::{CredentialError, Role};
pub use self::files::{FilesStamp, TlsFiles};
pub use self::handshake::{Accept, Dial, Judge, Stage, export_key};
pub use self::trust::Presented;

/// The protocol's name in the TLS handshake.
pub const ALPN: &[u8] = b"mraft/1";

/// A node's credentials, checked and ready for use. Clones share them.
#[derive(Clone, Debug)]
pub struct Credentials(Arc<Inner>);

struct Inner {
    files: TlsFiles,
    stamp: FilesStamp,
    own: Arc<CertifiedKey>,
    facts: Arc<CertificateFacts>,
    trust: Arc<Trust>,
    list_times: Option<ListTimes>,
    /// Of all that the files hold, the key aside.
    digest: Digest,
    client: ConfigBuilder<ClientConfig, WantsVerifier>,
    server: ConfigBuilder<ServerConfig, WantsVerifier>,
}

impl std::fmt::Debug for Inner {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("files", &self.files)
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

/// When the revocation lists were issued and are due, in seconds from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListTimes {
    /// The oldest list's beginning.
    issued: i64,
    /// When the first of them must be replaced.
    due: Option<i64>,
}

/// Whether a set that is past its time may be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Checked,
    Ignored,
}

impl Credentials {
    /// Reads and checks the files, for the node that they must be for.
    ///
    /// # Errors
    ///
    /// The first fault found, with its file and what to do about it.
    pub fn load(
        files: &TlsFiles,
        expected: &NodeIdentity,
        now: SystemTime,
    ) -> Result<Self, CredentialError> {
        Self::load_at(files, expected, now, Age::Checked)
    }

    /// The same for a leaf or a revocation list whose time is over, or hasn't come: a node whose
    /// credentials all expired can start, be refused by every peer, and recover by a reload.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load), less the faults of time.
    pub fn load_at_any_age(
        files: &TlsFiles,
        expected: &NodeIdentity,
        now: SystemTime,
    ) -> Result<Self, CredentialError> {
        Self::load_at(files, expected, now, Age::Ignored)
    }

    fn load_at(
        files: &TlsFiles,
        expected: &NodeIdentity,
        now: SystemTime,
        age: Age,
    ) -> Result<Self, CredentialError> {
        let (set, stamp) = files.read()?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let facts = own_facts(files, &set.chain, expected)?;
        let own = own_key(files, &set, &provider)?;
        let authorities = authorities(files, &set.authorities)?;
        let (lists, list_times) = match &set.lists {
            Some(lists) => revocation_lists(files, lists, &set, &authorities, &provider)?,
            None => (None, None),
        };
        let digest = digest_of(&set);
        let trust = Arc::new(Trust {
            authorities,
            lists,
            ca: files.ca.display().to_string(),
            crl: files
                .crl
                .as_deref()
                .map_or_else(String::new, |crl| crl.display().to_string()),
            provider: provider.clone(),
        });
        check_own(files, &set.chain, &trust, unix_time(now), age)?;
        let (client, server) = builders(&provider).ok_or(CredentialError::NoTls13)?;
        let facts = Arc::new(facts);
        Ok(Self(Arc::new(Inner {
            files: files.clone(),
            stamp,
            own,
            facts,
            trust,
            list_times,
            digest,
            client,
            server,
        })))
    }

    /// What the node's own leaf says.
    #[must_use]
    pub fn facts(&self) -> &CertificateFacts {
        &self.0.facts
    }

    /// The files that they were loaded from.
    #[must_use]
    pub fn files(&self) -> &TlsFiles {
        &self.0.files
    }

    /// The state of the files when they were read, to be compared with [`TlsFiles::stamp`].
    #[must_use]
    pub fn stamp(&self) -> &FilesStamp {
        &self.0.stamp
    }

    /// When the first of the revocation lists is due to be replaced, in seconds from 1970; `None`
    /// where no list is configured.
    #[must_use]
    pub fn list_due(&self) -> Option<i64> {
        self.0.list_times?.due
    }

    /// When the oldest of the revocation lists was issued, in seconds from 1970; `None` where no
    /// list is configured.
    #[must_use]
    pub fn list_issued(&self) -> Option<i64> {
        Some(self.0.list_times?.issued)
    }

    /// Whether these are the same credentials, made by one load.
    #[must_use]
    pub fn is_same_load(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the files held the same certificates and lists.
    #[must_use]
    pub fn has_content_of(&self, other: &Self) -> bool {
        self.0.digest.as_ref() == other.0.digest.as_ref()
    }

    /// Whether both present the same leaf.
    #[must_use]
    pub fn has_leaf_of(&self, other: &Self) -> bool {
        self.0.own.cert.first() == other.0.own.cert.first()
    }

    /// Whether this node's own leaf is in its time.
    #[must_use]
    pub fn is_leaf_in_time(&self, now: SystemTime) -> bool {
        let now = signed(unix_time(now).as_secs());
        (self.0.facts.not_before..=self.0.facts.not_after).contains(&now)
    }

    /// The last second in which a chain can stand under this trust, counted from 1970: that of its
    /// leaf, or of an issuer of it.
    #[must_use]
    pub fn good_until(&self, peer: &PeerCertificate) -> i64 {
        let chain = || peer.chain().iter().map(Particulars::of_der);
        let own = chain().map(|said| said.not_after).min();
        let issuer = chain().next_back().map(|said| said.issuer);
        let authorities = self.0.trust.authorities.iter();
        let anchor = authorities
            .filter(|authority| issuer.as_ref() == Some(&authority.said.subject))
            .map(|authority| authority.said.not_after)
            .max();
        [own, anchor]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(i64::MAX)
    }

    /// What of this set will lapse, and when.
    #[must_use]
    pub fn lapses(&self) -> Vec<Lapse> {
        let inner = &self.0;
        let mut lapses = vec![Lapse {
            what: format!("certificate {} of this node", inner.files.cert.display()),
            from: inner.facts.not_before,
            until: inner.facts.not_after,
        }];
        for Authority { said, .. } in &inner.trust.authorities {
            lapses.push(Lapse {
                what: format!("certificate of {} in {}", said.subject, inner.trust.ca),
                from: said.not_before,
                until: said.not_after,
            });
        }
        if let Some(ListTimes {
            issued,
            due: Some(due),
        }) = inner.list_times
        {
            lapses.push(Lapse {
                what: format!("revocation list {}", inner.trust.crl),
                from: issued,
                until: due,
            });
        }
        lapses
    }

    /// What a connection to this node needs. Made for each connection anew.
    #[must_use]
    pub fn dial(&self, expected: &NodeIdentity) -> Dial {
        Dial::new(self, expected)
    }

    /// What an incoming connection needs. Made for each connection anew.
    #[must_use]
    pub fn accept(&self) -> Accept {
        Accept::new(self)
    }

    /// Judges the chain of a live session anew, under this trust and at this time (T9).
    ///
    /// # Errors
    ///
    /// Why the session could not be begun today.
    pub fn recheck(
        &self,
        peer: &PeerCertificate,
        presented: Presented,
        now: SystemTime,
    ) -> Result<(), TlsFault> {
        let Some((leaf, intermediates)) = peer.chain().split_first() else {
            return Err(TlsFault::NoCertificate);
        };
        self.0
            .trust
            .verify(leaf, intermediates, presented, unix_time(now))
    }
}

type Builders = (
    ConfigBuilder<ClientConfig, WantsVerifier>,
    ConfigBuilder<ServerConfig, WantsVerifier>,
);

/// The beginnings of all configurations: this provider and TLS 1.3, whatever else the process has.
fn builders(provider: &Arc<CryptoProvider>) -> Option<Builders> {
    let versions = &[&rustls::version::TLS13];
    let client = ClientConfig::builder_with_provider(provider.clone());
    let server = ServerConfig::builder_with_provider(provider.clone());
    Some((
        client.with_protocol_versions(versions).ok()?,
        server.with_protocol_versions(versions).ok()?,
    ))
}

fn malformed(role: Role, file: &Path, index: usize) -> CredentialError {
    CredentialError::Malformed {
        role,
        file: file.to_owned(),
        position: index + 1,
    }
}

fn own_facts(
    files: &TlsFiles,
    chain: &[CertificateDer<'_>],
    expected: &NodeIdentity,
) -> Result<CertificateFacts, CredentialError> {
    for (index, certificate) in chain.iter().enumerate() {
        if parse(certificate).is_none() {
            return Err(malformed(Role::Cert, &files.cert, index));
        }
    }
    let facts = identity_of(Some(chain)).map_err(|fault| CredentialError::NamesNoNode {
        cert: files.cert.clone(),
        fault,
    })?;
    if facts.identity == *expected {
        Ok(facts)
    } else {
        Err(CredentialError::NamesAnother {
            cert: files.cert.clone(),
            expected: expected.clone(),
            got: facts.identity,
        })
    }
}

fn own_key(
    files: &TlsFiles,
    set: &PemSet,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, CredentialError> {
    let key = provider
        .key_provider
        .load_private_key(set.key.clone_key())
        .map_err(|_| CredentialError::UnsupportedKey {
            file: files.key.clone(),
        })?;
    let own = CertifiedKey::new(set.chain.clone(), key);
    own.keys_match().map_err(|_| CredentialError::KeyMismatch {
        cert: files.cert.clone(),
        key: files.key.clone(),
    })?;
    Ok(Arc::new(own))
}

fn authorities(
    files: &TlsFiles,
    certificates: &[CertificateDer<'static>],
) -> Result<Vec<Authority>, CredentialError> {
    let read = |(index, der): (usize, &CertificateDer<'static>)| {
        let broken = || malformed(Role::Ca, &files.ca, index);
        let certificate = parse(der).ok_or_else(broken)?;
        let anchor = webpki::anchor_from_trusted_cert(der).map_err(|_| broken())?;
        let said = Particulars::of(&certificate);
        if !certificate.is_ca() {
            return Err(CredentialError::NotACa {
                ca: files.ca.clone(),
                subject: said.subject,
            });
        }
        Ok(Authority {
            anchor: anchor.to_owned(),
            key: key_of(&certificate).to_vec(),
            said,
        })
    };
    certificates.iter().enumerate().map(read).collect()
}

type Lists = (Option<Vec<SignedList>>, Option<ListTimes>);

fn digest_of(set: &PemSet) -> Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut part = |kind: &[u8], bytes: &[u8]| {
        context.update(kind);
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    for certificate in &set.authorities {
        part(b"a", certificate);
    }
    for certificate in &set.chain {
        part(b"c", certificate);
    }
    for list in set.lists.iter().flatten() {
        part(b"l", list);
    }
    context.finish()
}

/// Every list must be signed by a CA of the set, or by an issuer in our own chain, and every CA
/// must have one: the certificates of a CA without a list would all be refused.
fn revocation_lists(
    files: &TlsFiles,
    lists: &[CertificateRevocationListDer<'_>],
    set: &PemSet,
    authorities: &[Authority],
    provider: &CryptoProvider,
) -> Result<Lists, CredentialError> {
    let crl = files.crl.clone().unwrap_or_default();
    let issuers = set.authorities.iter().chain(set.chain.iter().skip(1));
    let issuers: Vec<_> = issuers.filter_map(parse).collect();
    let mut understood = Vec::new();
    let (mut due, mut issued) = (None::<i64>, None::<i64>);
    for (index, der) in lists.iter().enumerate() {
        let broken = || malformed(Role::Crl, &crl, index);
        let owned = OwnedCertRevocationList::from_der(der).map_err(|_| broken())?;
        let Ok(([], list)) = x509_parser::parse_x509_crl(der) else {
            return Err(broken());
        };
        let signer = issuers
            .iter()
            .find(|issuer| signed_by(&list, issuer, provider));
        let signer = signer.ok_or_else(|| CredentialError::ListNotSigned {
            crl: crl.clone(),
            issuer: printable(&list.issuer().to_string()),
            ca: files.ca.clone(),
        })?;
        let next = list.next_update().map(|next| next.timestamp());
        due = [due, next].into_iter().flatten().min();
        let this = Some(list.last_update().timestamp());
        issued = [issued, this].into_iter().flatten().min();
        understood.push(SignedList {
            key: key_of(signer).to_vec(),
            list: CertRevocationList::from(owned),
        });
    }
    for authority in authorities {
        if !understood.iter().any(|list| list.key == authority.key) {
            return Err(CredentialError::ListMissing {
                crl,
                subject: authority.said.subject.clone(),
                ca: files.ca.clone(),
            });
        }
    }
    let times = issued.map(|issued| ListTimes { issued, due });
    Ok((Some(understood), times))
}

fn key_of<'a>(certificate: &'a X509Certificate<'_>) -> &'a [u8] {
    &certificate.public_key().subject_public_key.data
}

/// Whether the list carries the issuer's name and signature. Which algorithm it is of is left to
/// the key, since `webpki` holds both against each other at every handshake.
fn signed_by(
    list: &CertificateRevocationList<'_>,
    issuer: &X509Certificate<'_>,
    provider: &CryptoProvider,
) -> bool {
    let key = key_of(issuer);
    let algorithms = provider.signature_verification_algorithms.all.iter();
    list.issuer().as_raw() == issuer.subject().as_raw()
        && algorithms.into_iter().any(|algorithm| {
            algorithm
                .verify_signature(key, list.tbs_cert_list.as_ref(), &list.signature_value.data)
                .is_ok()
        })
}

/// Holds our own leaf against the rules that peers of the same cluster will apply to it.
fn check_own(
    files: &TlsFiles,
    chain: &[CertificateDer<'_>],
    trust: &Trust,
    now: UnixTime,
    age: Age,
) -> Result<(), CredentialError> {
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(malformed(Role::Cert, &files.cert, 0));
    };
    let own_fault = |fault| own_fault(files, fault);
    let verify = |now| {
        [Presented::AsServer, Presented::AsClient]
            .into_iter()
            .try_for_each(|presented| trust.verify(leaf, intermediates, presented, now))
            .map_err(own_fault)
    };
    let of_time = |fault: &CredentialError| {
        matches!(
            fault,
            CredentialError::Expired { .. }
                | CredentialError::NotYetValid { .. }
                | CredentialError::ListExpired { .. }
        )
    };
    match verify(now) {
        // The faults of time come first and hide the others, so these are looked for in a time
        // at which the leaf was good.
        Err(fault) if age == Age::Ignored && of_time(&fault) => {
            let good = u64::try_from(Particulars::of_der(leaf).not_before).unwrap_or(0);
            let good = UnixTime::since_unix_epoch(Duration::from_secs(good));
            verify(good).or_else(|fault| if of_time(&fault) { Ok(()) } else { Err(fault) })
        }
        found => found,
    }
}

fn own_fault(files: &TlsFiles, fault: TlsFault) -> CredentialError {
    let cert = files.cert.clone();
    let crl = files.crl.clone().unwrap_or_default();
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the rest are not about certificates"
    )]
    match fault {
        TlsFault::UnknownIssuer {
            subject, issuer, ..
        } => CredentialError::UntrustedLeaf {
            cert,
            subject,
            issuer,
            ca: files.ca.clone(),
        },
        TlsFault::Expired { subject, not_after } => CredentialError::Expired {
            cert,
            subject,
            not_after,
        },
        TlsFault::NotYetValid {
            subject,
            not_before,
        } => CredentialError::NotYetValid {
            cert,
            subject,
            not_before,
        },
        TlsFault::Revoked {
            subject, serial, ..
        } => CredentialError::Revoked {
            cert,
            subject,
            serial,
            crl,
        },
        TlsFault::ListExpired { next_update, .. } => {
            CredentialError::ListExpired { crl, next_update }
        }
        TlsFault::BadCertificate { subject, fault } => CredentialError::UnusableLeaf {
            cert,
            subject,
            fault,
        },
        other => CredentialError::UnusableLeaf {
            cert,
            subject: "the leaf".to_owned(),
            fault: other.to_string(),
        },
    }
}
