//! What a certificate says, in words: whose it is, who issued it, how long it is good, and which
//! node it speaks for. Reads certificates of ours and of strangers alike, so every text from one
//! is cut and stripped of control characters before it can reach a log. Whether a certificate is to
//! be believed is `trust`'s business.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use crate::error::IdentityFault;
use crate::id::NodeIdentity;
use crate::limits::CERTIFICATE_TEXT_BYTES_MAX;

/// What a certificate says about itself, whoever it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Particulars {
    pub(super) subject: String,
    pub(super) issuer: String,
    pub(super) serial: String,
    pub(super) not_before: i64,
    pub(super) not_after: i64,
}

/// What the certificate of a node says, for logs, metrics and the end of a session's life.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertificateFacts {
    /// The node that it speaks for, from its one URI name.
    pub identity: NodeIdentity,
    /// Its subject.
    pub subject: String,
    /// Its issuer's subject.
    pub issuer: String,
    /// Its serial number, in hex.
    pub serial: String,
    /// Its first second, counted from 1970.
    pub not_before: i64,
    /// Its last second, counted from 1970.
    pub not_after: i64,
}

/// The chain that the other side of a session presented, kept so that it can be judged again when
/// trust changes or time passes (T9).
#[derive(Clone, Debug)]
pub struct PeerCertificate {
    facts: CertificateFacts,
    chain: Arc<[CertificateDer<'static>]>,
}

impl PeerCertificate {
    /// What the leaf says.
    #[must_use]
    pub const fn facts(&self) -> &CertificateFacts {
        &self.facts
    }

    pub(super) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// Whether both chains begin with the same leaf.
    #[must_use]
    pub fn has_leaf_of(&self, other: &Self) -> bool {
        self.chain.first() == other.chain.first()
    }

    /// Whether the other leaf begins later than this one, as one that renews it does.
    #[must_use]
    pub fn is_renewed_by(&self, other: &Self) -> bool {
        other.facts.not_before > self.facts.not_before
    }

    pub(super) fn read(chain: Option<&[CertificateDer<'_>]>) -> Result<Self, IdentityFault> {
        let facts = identity_of(chain)?;
        let owned = |certificate: &CertificateDer<'_>| certificate.clone().into_owned();
        let chain = chain.unwrap_or_default().iter().map(owned).collect();
        Ok(Self { facts, chain })
    }
}

/// Reads from a chain, leaf first, which node it speaks for. It proves nothing: only a chain that
/// a finished handshake vouches for may be believed.
///
/// # Errors
///
/// What the leaf has in place of exactly one node's URI.
pub fn identity_of(
    chain: Option<&[CertificateDer<'_>]>,
) -> Result<CertificateFacts, IdentityFault> {
    let leaf = chain
        .and_then(<[_]>::first)
        .ok_or(IdentityFault::NoCertificate)?;
    let leaf = parse(leaf).ok_or(IdentityFault::Unreadable)?;
    let names = leaf
        .subject_alternative_name()
        .map_err(|_| IdentityFault::Unreadable)?;
    let names = names.map_or(&[][..], |names| names.value.general_names.as_slice());
    let mut uris = names.iter().filter_map(|name| {
        if let GeneralName::URI(uri) = name {
            Some(*uri)
        } else {
            None
        }
    });
    let uri = uris.next().ok_or(IdentityFault::NoUri)?;
    let rest = uris.count();
    if rest > 0 {
        return Err(IdentityFault::ManyUris { got: 1 + rest });
    }
    let said = Particulars::of(&leaf);
    Ok(CertificateFacts {
        identity: uri.parse()?,
        subject: said.subject,
        issuer: said.issuer,
        serial: said.serial,
        not_before: said.not_before,
        not_after: said.not_after,
    })
}

/// Reads one certificate that nothing follows.
pub(super) fn parse<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Some(certificate),
        Ok(_) | Err(_) => None,
    }
}

impl Particulars {
    pub(super) fn of(certificate: &X509Certificate<'_>) -> Self {
        Self {
            subject: printable(&certificate.subject().to_string()),
            issuer: printable(&certificate.issuer().to_string()),
            serial: hex(certificate.raw_serial()),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        }
    }

    /// The same of bytes; of unreadable ones, words that say so.
    pub(super) fn of_der(der: &CertificateDer<'_>) -> Self {
        let unreadable = || Self {
            subject: "an unreadable certificate".to_owned(),
            issuer: "nobody".to_owned(),
            serial: String::new(),
            not_before: 0,
            not_after: 0,
        };
        parse(der).map_or_else(unreadable, |certificate| Self::of(&certificate))
    }
}

/// Makes a foreign text fit for one line of a log.
pub(super) fn printable(text: &str) -> String {
    let mut line = String::new();
    for character in text.chars() {
        if line.len() + character.len_utf8() > CERTIFICATE_TEXT_BYTES_MAX {
            break;
        }
        line.push(if character.is_control() {
            '?'
        } else {
            character
        });
    }
    if line.is_empty() {
        line.push_str("an empty name");
    }
    line
}

/// A serial number as tools show it, without the zero that only marks its sign.
pub(super) fn hex(bytes: &[u8]) -> String {
    let bytes = match bytes {
        [0, rest @ ..] if !rest.is_empty() => rest,
        whole => whole,
    };
    // An issuer may use 20 bytes; a longer one is a stranger's and is cut.
    let shown = bytes.iter().take(CERTIFICATE_TEXT_BYTES_MAX / 2);
    shown.map(|byte| format!("{byte:02x}")).collect()
}

/// A second counted from 1970, as RFC 3339.
pub(super) fn rfc3339(seconds: i64) -> String {
    OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .and_then(|instant| instant.format(&Rfc3339).ok())
        .unwrap_or_else(|| format!("second {seconds} of 1970"))
}
