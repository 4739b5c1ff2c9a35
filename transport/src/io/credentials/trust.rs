//! Which chains are believed: those that lead to our CA set, are in their time, may be used for
//! the role they are presented in, and are on no revocation list of ours. The rules are the same
//! for both directions of a link and for our own leaf; who a chain speaks for is checked
//! elsewhere, except that a dialler's verifier also insists on the node that was dialled.
//!
//! A verifier is made for one connection and leaves its typed verdict beside it, since the TLS
//! library's own errors hold neither names nor files.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError};
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, RevocationOptionsBuilder,
};

use super::certificate::{Particulars, identity_of, rfc3339};
use crate::error::{PeerIncompatible, SessionEnd, TlsFault};
use crate::id::NodeIdentity;

/// What a chain is presented for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presented {
    /// By the side that was dialled.
    AsServer,
    /// By the side that dialled.
    AsClient,
}

impl Presented {
    const fn usage(self) -> KeyUsage {
        match self {
            Self::AsServer => KeyUsage::server_auth(),
            Self::AsClient => KeyUsage::client_auth(),
        }
    }
}

/// One CA of the set. `webpki` knows no time limits of an anchor, so they are kept here.
#[derive(Clone, Debug)]
pub(super) struct Authority {
    pub(super) anchor: TrustAnchor<'static>,
    /// Its public key: two CAs may have one name, as a CA and its successor do.
    pub(super) key: Vec<u8>,
    pub(super) said: Particulars,
}

/// A revocation list and the public key of who signed it. Lists are found by that: `webpki` goes by
/// the issuer's name alone, and would hold a leaf against the list of another CA of the same name.
pub(super) struct SignedList {
    pub(super) key: Vec<u8>,
    pub(super) list: CertRevocationList<'static>,
}

/// The CA set, the revocation lists, and the files that they came from.
pub(super) struct Trust {
    pub(super) authorities: Vec<Authority>,
    /// `None` where no list is configured, which means no check.
    pub(super) lists: Option<Vec<SignedList>>,
    pub(super) ca: String,
    pub(super) crl: String,
    pub(super) provider: Arc<CryptoProvider>,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust")
            .field("ca", &self.ca)
            .field("crl", &self.crl)
            .field("authorities", &self.authorities.len())
            .finish_non_exhaustive()
    }
}

pub(super) fn unix_time(now: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub(super) fn signed(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

impl Trust {
    /// Whether the chain may be believed now, in the role it is presented in.
    pub(super) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        presented: Presented,
        now: UnixTime,
    ) -> Result<(), TlsFault> {
        let end_entity = EndEntityCert::try_from(leaf).map_err(|error| self.fault(leaf, &error))?;
        let mut nearest = webpki::Error::UnknownIssuer;
        for authority in &self.authorities {
            let lists = self.lists_under(authority);
            let revocation = match &lists {
                None => None,
                // A CA without a list is refused when the files are read.
                Some(lists) => RevocationOptionsBuilder::new(lists).ok().map(|options| {
                    options
                        .with_expiration_policy(ExpirationPolicy::Enforce)
                        .build()
                }),
            };
            let path = end_entity.verify_for_usage(
                self.provider.signature_verification_algorithms.all,
                std::slice::from_ref(&authority.anchor),
                intermediates,
                now,
                presented.usage(),
                revocation,
                None,
            );
            match path {
                Ok(path) => return self.anchor_in_time(path.anchor(), signed(now.as_secs())),
                // What a CA that isn't the chain's finds says least.
                Err(error) if says_more(&error, &nearest) => nearest = error,
                Err(_) => {}
            }
        }
        Err(self.fault(leaf, &nearest))
    }

    /// The lists for chains to this CA: its own, and those of issuers that are no CAs of the set.
    fn lists_under(&self, authority: &Authority) -> Option<Vec<&CertRevocationList<'static>>> {
        let others = |key: &[u8]| self.authorities.iter().any(|other| other.key == key);
        let lists = self.lists.as_ref()?.iter();
        let under = lists.filter(|list| list.key == authority.key || !others(&list.key));
        Some(under.map(|list| &list.list).collect())
    }

    fn anchor_in_time(&self, anchor: &TrustAnchor<'_>, now: i64) -> Result<(), TlsFault> {
        let ours = |authority: &&Authority| {
            authority.anchor.subject == anchor.subject
                && authority.anchor.subject_public_key_info == anchor.subject_public_key_info
        };
        // A CA renewed under its old key is there twice, and the newer one counts.
        let authorities = self.authorities.iter().filter(ours);
        match authorities.max_by_key(|authority| authority.said.not_after) {
            Some(Authority { said, .. }) if now > said.not_after => Err(TlsFault::Expired {
                subject: said.subject.clone(),
                not_after: rfc3339(said.not_after),
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Names, files and times for the bare reason.
    fn fault(&self, leaf: &CertificateDer<'_>, error: &webpki::Error) -> TlsFault {
        let said = Particulars::of_der(leaf);
        // A time that isn't the leaf's is that of an issuer between it and the CA.
        let whose = |instant: i64, own: i64| {
            if instant == own {
                said.subject.clone()
            } else {
                said.issuer.clone()
            }
        };
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is foreign and open"
        )]
        match error {
            webpki::Error::CertExpired { not_after, .. } => TlsFault::Expired {
                subject: whose(signed(not_after.as_secs()), said.not_after),
                not_after: rfc3339(signed(not_after.as_secs())),
            },
            webpki::Error::CertNotValidYet { not_before, .. } => TlsFault::NotYetValid {
                subject: whose(signed(not_before.as_secs()), said.not_before),
                not_before: rfc3339(signed(not_before.as_secs())),
            },
            webpki::Error::UnknownIssuer => TlsFault::UnknownIssuer {
                subject: said.subject,
                issuer: said.issuer,
                ca: self.ca.clone(),
            },
            // The name is in the set, its key isn't: two CAs were made under one name.
            webpki::Error::InvalidSignatureForPublicKey => TlsFault::UnknownIssuer {
                subject: said.subject,
                issuer: format!("another CA that also calls itself {}", said.issuer),
                ca: self.ca.clone(),
            },
            webpki::Error::CertRevoked => TlsFault::Revoked {
                subject: said.subject,
                serial: said.serial,
                crl: self.crl.clone(),
            },
            webpki::Error::CrlExpired { next_update, .. } => TlsFault::ListExpired {
                crl: self.crl.clone(),
                next_update: rfc3339(signed(next_update.as_secs())),
            },
            webpki::Error::UnknownRevocationStatus => TlsFault::BadCertificate {
                subject: said.subject,
                fault: format!("{} has no list of its issuer", self.crl),
            },
            webpki::Error::RequiredEkuNotFoundContext(_) => TlsFault::BadCertificate {
                subject: said.subject,
                fault: "its extended key usage excludes this side of a connection, \
                        and a node needs both"
                    .to_owned(),
            },
            other => TlsFault::BadCertificate {
                subject: said.subject,
                fault: other.to_string(),
            },
        }
    }
}

/// How near to the chain's own issuer the finder of an error was.
fn nearness(error: &webpki::Error) -> u8 {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is foreign and open"
    )]
    match error {
        webpki::Error::UnknownIssuer => 0,
        webpki::Error::InvalidSignatureForPublicKey => 1,
        _ => 2,
    }
}

fn says_more(error: &webpki::Error, than: &webpki::Error) -> bool {
    nearness(error) > nearness(than)
}

/// What a verifier found, for the one connection that it was made for.
pub(super) type Verdict = Arc<OnceLock<SessionEnd>>;

/// The verifier of either side of one connection.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) trust: Arc<Trust>,
    pub(super) verdict: Verdict,
    /// The node dialled; an acceptor learns only afterwards who called.
    pub(super) expected: Option<NodeIdentity>,
}

impl Verifier {
    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        presented: Presented,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let believed = self
            .trust
            .verify(leaf, intermediates, presented, now)
            .map_err(SessionEnd::from);
        let named = believed.and_then(|()| match &self.expected {
            None => Ok(()),
            Some(expected) => is_named(leaf, expected).map_err(SessionEnd::from),
        });
        named.map_err(|end| {
            let error = rustls::Error::InvalidCertificate(alerting(&end));
            // A connection has one certificate to judge, so the first verdict is the only one.
            let _already_set = self.verdict.set(end);
            error
        })
    }

    fn signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.trust.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, leaf, signature, algorithms)
    }
}

/// Whether the leaf speaks for the node that was wanted.
pub(super) fn is_named(
    leaf: &CertificateDer<'_>,
    expected: &NodeIdentity,
) -> Result<(), PeerIncompatible> {
    let got = identity_of(Some(std::slice::from_ref(leaf)))
        .map_err(|fault| PeerIncompatible::NoIdentity { fault })?
        .identity;
    if got.cluster != expected.cluster {
        return Err(PeerIncompatible::WrongCluster {
            expected: expected.cluster.to_string(),
            got: got.cluster.to_string(),
        });
    }
    if got.node != expected.node {
        return Err(PeerIncompatible::WrongNode {
            expected: expected.node,
            got: got.node,
        });
    }
    Ok(())
}

/// The TLS library's word that sends the alert by which the other side understands us best.
fn alerting(end: &SessionEnd) -> CertificateError {
    let SessionEnd::Tls(fault) = end else {
        // access_denied: the certificate is good, but not the one that was wanted.
        return CertificateError::ApplicationVerificationFailure;
    };
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the rest are not about certificates"
    )]
    match fault {
        TlsFault::Expired { .. } => CertificateError::Expired,
        TlsFault::NotYetValid { .. } => CertificateError::NotValidYet,
        TlsFault::UnknownIssuer { .. } => CertificateError::UnknownIssuer,
        TlsFault::Revoked { .. } => CertificateError::Revoked,
        TlsFault::BadCertificate { .. } => CertificateError::InvalidPurpose,
        // certificate_unknown: the fault is on this side, so the other can't know it.
        fault => CertificateError::Other(OtherError(Arc::new(fault.clone()))),
    }
}

/// TLS 1.2 isn't even compiled in; its signatures are refused all the same.
fn no_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
    Err(rustls::PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.judge(end_entity, intermediates, Presented::AsServer, now)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.trust
            .provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    /// No hints: a caller has one certificate and sends it, and is told what is wrong with it.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.judge(end_entity, intermediates, Presented::AsClient, now)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.trust
            .provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
