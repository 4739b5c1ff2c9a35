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

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, ServerConfig, WantsVerifier};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_parser::certificate::X509Certificate;
use x509_parser::revocation_list::CertificateRevocationList;

use self::certificate::{Particulars, parse, printable};
use self::files::PemSet;
use self::trust::{Authority, Trust, unix_time};
use crate::error::TlsFault;
use crate::id::NodeIdentity;

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
    list_due: Option<i64>,
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
        let (lists, list_due) = match &set.lists {
            Some(lists) => revocation_lists(files, lists, &set, &authorities, &provider)?,
            None => (None, None),
        };
        let trust = Arc::new(Trust {
            anchors: authorities
                .iter()
                .map(|authority| authority.anchor.clone())
                .collect(),
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
            list_due,
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
        self.0.list_due
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
            said,
        })
    };
    certificates.iter().enumerate().map(read).collect()
}

type Lists = (Option<Vec<CertRevocationList<'static>>>, Option<i64>);

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
    let mut from = Vec::new();
    let mut due: Option<i64> = None;
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
        from.push(signer.subject().as_raw().to_vec());
        let next = list.next_update().map(|next| next.timestamp());
        due = [due, next].into_iter().flatten().min();
        understood.push(CertRevocationList::from(owned));
    }
    for (der, authority) in set.authorities.iter().zip(authorities) {
        let listed =
            parse(der).is_some_and(|ca| from.iter().any(|raw| raw == ca.subject().as_raw()));
        if !listed {
            return Err(CredentialError::ListMissing {
                crl,
                subject: authority.said.subject.clone(),
                ca: files.ca.clone(),
            });
        }
    }
    Ok((Some(understood), due))
}

/// Whether the list carries the issuer's name and signature. Which algorithm it is of is left to
/// the key, since `webpki` holds both against each other at every handshake.
fn signed_by(
    list: &CertificateRevocationList<'_>,
    issuer: &X509Certificate<'_>,
    provider: &CryptoProvider,
) -> bool {
    let key = &issuer.public_key().subject_public_key.data;
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
