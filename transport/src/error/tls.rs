//! Faults of TLS: certificates, lists, and what isn't TLS at all.

use crate::error::AuthorityEnded;

/// What the handshake, or the TLS session after it, failed on. Built where rustls is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFault {
    /// Bytes that aren't TLS.
    #[error("the other side sent bytes that are not TLS; is this the peer port of a node?")]
    NotTls,
    /// The other side's chain doesn't lead to our CA.
    #[error(
        "certificate of {subject} was issued by {issuer}, which is not in the CA file {ca}; \
         do both nodes use the same CA?"
    )]
    UnknownIssuer {
        /// The leaf's subject.
        subject: String,
        /// The leaf's issuer.
        issuer: String,
        /// The file that our CA set came from.
        ca: String,
    },
    /// The other side's certificate has expired.
    #[error("certificate of {subject} expired at {not_after}; renew it")]
    Expired {
        /// The leaf's subject.
        subject: String,
        /// Its last second, RFC 3339.
        not_after: String,
    },
    /// The other side's certificate isn't valid yet, so a clock is wrong.
    #[error("certificate of {subject} is not valid before {not_before}; check both clocks")]
    NotYetValid {
        /// The leaf's subject.
        subject: String,
        /// Its first second, RFC 3339.
        not_before: String,
    },
    /// The other side's certificate is on our revocation list.
    #[error("certificate of {subject}, serial {serial}, is revoked by the list {crl}")]
    Revoked {
        /// The leaf's subject.
        subject: String,
        /// Its serial number, in hex.
        serial: String,
        /// The file that the list came from.
        crl: String,
    },
    /// Our revocation list is too old to be believed.
    #[error("revocation list {crl} expired at {next_update}; publish a new one")]
    ListExpired {
        /// The file that the list came from.
        crl: String,
        /// When the next one was due, RFC 3339.
        next_update: String,
    },
    /// A certificate that is wrong in another way.
    #[error("certificate of {subject} is not acceptable: {fault}")]
    BadCertificate {
        /// The leaf's subject, or where it came from.
        subject: String,
        /// The TLS library's word for it.
        fault: String,
    },
    /// The other side sent no certificate.
    #[error("the other side sent no certificate; it must present one of this cluster's")]
    NoCertificate,
    /// The other side won't have our certificate.
    #[error(
        "the other side refused our certificate {cert} ({alert}); \
         it is {subject}, issued by {issuer}: {}",
        refusal_hint(alert)
    )]
    OursRefused {
        /// The file that our certificate came from.
        cert: String,
        /// The alert's name.
        alert: String,
        /// Our leaf's subject.
        subject: String,
        /// Our leaf's issuer.
        issuer: String,
    },
    /// The other side ended the handshake or session with an alert.
    #[error("the other side ended TLS with the alert {alert}")]
    Alert {
        /// The alert's name.
        alert: String,
    },
    /// Both sides speak TLS, but not a version or suite in common.
    #[error("no TLS version or cipher suite in common; TLS 1.3 is the only version spoken here")]
    NothingInCommon,
    /// Both sides speak TLS, but not for the same purpose.
    #[error(
        "the other side speaks TLS but not mraft/1{}; is this the peer port of a node?",
        instead(got)
    )]
    OtherProtocol {
        /// The protocol that was agreed on, empty for none.
        got: String,
    },
    /// The connection was closed inside the handshake.
    #[error("connection closed inside the TLS handshake")]
    ClosedInHandshake,
    /// Anything else that the TLS library names.
    #[error("TLS failed: {fault}")]
    Failed {
        /// The TLS library's word for it.
        fault: String,
    },
}

impl TlsFault {
    /// What a live session's chain has lost when judging it anew found this; `None` for a fault
    /// that isn't the peer's, such as our own list being too old.
    #[must_use]
    pub const fn authority_ended(&self) -> Option<AuthorityEnded> {
        if let Self::Expired { .. } = self {
            Some(AuthorityEnded::Expired)
        } else if let Self::Revoked { .. } = self {
            Some(AuthorityEnded::Revoked)
        } else if let Self::UnknownIssuer { .. } = self {
            Some(AuthorityEnded::CaRemoved)
        } else {
            None
        }
    }
}

fn instead(got: &str) -> String {
    if got.is_empty() {
        String::new()
    } else {
        format!(", it agreed on {got:?}")
    }
}

/// What to look at when the other side refuses our certificate with this alert.
fn refusal_hint(alert: &str) -> &'static str {
    match alert {
        "unknown_ca" => "do both nodes use the same CA?",
        "certificate_expired" => "has it expired, or is a clock wrong?",
        "certificate_revoked" => "it is on the other side's revocation list; issue a new one",
        "unsupported_certificate" => "does it allow both client and server use?",
        "access_denied" => "the other side wanted another node; check this address in its [peers]",
        _ => "the other side's log says why",
    }
}
