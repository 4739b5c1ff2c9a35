//! Makes the certificates of a cluster: its CA, one leaf for each node, the list of revoked ones.
//! It knows neither files nor the clock, so that tests can make any certificate of any age; where
//! they are stored is the `certs` command's business, and whether they are any good is decided by
//! `transport::io::credentials`, which knows nothing of this module.
//!
//! - A CA names its cluster in the URI `mraft://CLUSTER`, so that leaves can be issued from its two
//!   files alone and none is ever issued for another cluster.
//! - A leaf has exactly one URI, `mraft://CLUSTER/node/N`; other names are for people and tools.
//! - All keys are ECDSA P-256, and a leaf never outlives its CA.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber,
};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use transport::id::{ClusterName, NodeIdentity, PeerId};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

/// Bytes of a host name among a leaf's names, as DNS has it. A longer one is refused.
pub const HOST_NAME_BYTES_MAX: usize = 253;

/// The time in which a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its first second.
    pub not_before: OffsetDateTime,
    /// Its last second.
    pub not_after: OffsetDateTime,
}

/// A certificate and its key.
#[derive(Clone)]
pub struct PemPair {
    /// The certificate.
    pub certificate: String,
    /// The key, unencrypted PKCS #8. Never shown by `Debug`.
    pub key: String,
}

impl fmt::Debug for PemPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PemPair")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// A further name in a leaf: a host or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostName {
    /// A DNS name.
    Dns(String),
    /// An IP address.
    Ip(IpAddr),
}

/// A certificate that is no longer to be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Its serial number.
    pub serial: Vec<u8>,
    /// Since when.
    pub since: OffsetDateTime,
}

/// A revocation list, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationList {
    /// Its number; each list of a CA has a higher one.
    pub number: u64,
    /// When the next is due. After that a list is refused with everyone it speaks of.
    pub next_update: OffsetDateTime,
    /// The revoked certificates.
    pub revoked: Vec<Revocation>,
}

/// Why a certificate wasn't made, or a CA's files can't be used to make one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A text that is neither a host's name nor an address.
    #[error("{got:?} is neither a host name nor an IP address")]
    NotAHost {
        /// The text.
        got: String,
    },
    /// A certificate file that can't be read as one.
    #[error("CA certificate is not a well-formed PEM certificate")]
    MalformedCa,
    /// A list that can't be read as one.
    #[error("revocation list is not a well-formed PEM list")]
    MalformedList,
    /// More lists than the one of this CA, as there are while a CA is replaced.
    #[error("it holds the lists of several CAs, and only one alone can be signed anew")]
    ManyLists,
    /// A leaf's file that can't be read as one.
    #[error("it is not a well-formed PEM certificate")]
    MalformedLeaf,
    /// A key file that can't be read as one.
    #[error("CA key is not a well-formed unencrypted PKCS #8 key in PEM")]
    MalformedKey,
    /// The CA's key isn't its certificate's.
    #[error("CA key does not belong to the CA certificate")]
    KeyMismatch,
    /// A certificate that may not issue others.
    #[error("certificate of {subject} is no CA's")]
    NotACa {
        /// Its subject.
        subject: String,
    },
    /// A CA that names no cluster.
    #[error("CA certificate of {subject} does not name its cluster in a URI mraft://CLUSTER")]
    NoCluster {
        /// Its subject.
        subject: String,
    },
    /// A leaf that would be good for longer than its CA.
    #[error("CA of the cluster is good until {ca_not_after}, but the leaf would be until {asked}")]
    OutlivesCa {
        /// The CA's last second, RFC 3339.
        ca_not_after: String,
        /// The leaf's, likewise.
        asked: String,
    },
    /// A time that ends before it begins.
    #[error("validity ends at {not_after}, before it begins at {not_before}")]
    EmptyValidity {
        /// Its first second, RFC 3339.
        not_before: String,
        /// Its last second, likewise.
        not_after: String,
    },
    /// The crypto library's own fault.
    #[error("crypto library failed: {0}")]
    Crypto(#[from] rcgen::Error),
}

/// A point in time, as RFC 3339 and to the second.
#[must_use]
pub fn rfc3339(instant: OffsetDateTime) -> String {
    let whole = instant.replace_nanosecond(0).unwrap_or(instant);
    whole
        .format(&Rfc3339)
        .unwrap_or_else(|_| format!("second {} of 1970", whole.unix_timestamp()))
}

impl Validity {
    fn checked(self) -> Result<Self, CertificateError> {
        if self.not_before < self.not_after {
            return Ok(self);
        }
        Err(CertificateError::EmptyValidity {
            not_before: rfc3339(self.not_before),
            not_after: rfc3339(self.not_after),
        })
    }
}

impl FromStr for HostName {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<Self, CertificateError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(plain)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // A last label of digits alone is a mistyped address.
        let last = text.rsplit('.').next().unwrap_or_default();
        let numeric = last.bytes().all(|byte| byte.is_ascii_digit());
        if text.len() <= HOST_NAME_BYTES_MAX && text.split('.').all(label) && !numeric {
            Ok(Self::Dns(text.to_owned()))
        } else {
            Err(CertificateError::NotAHost {
                got: text.chars().take(HOST_NAME_BYTES_MAX).collect(),
            })
        }
    }
}

impl HostName {
    fn into_san(self) -> Result<SanType, CertificateError> {
        Ok(match self {
            Self::Dns(name) => SanType::DnsName(name.try_into()?),
            Self::Ip(address) => SanType::IpAddress(address),
        })
    }
}

/// The CA of a cluster, able to issue.
#[derive(Debug)]
pub struct Authority {
    cluster: ClusterName,
    not_after: OffsetDateTime,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// Makes a CA for a cluster, with a key of its own, which its second part is.
    ///
    /// # Errors
    ///
    /// A validity that is none, or a failure of the crypto library.
    pub fn make(
        cluster: &ClusterName,
        validity: Validity,
    ) -> Result<(Self, PemPair), CertificateError> {
        let validity = validity.checked()?;
        let mut params = params_of(&format!("{cluster} CA"), validity);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.subject_alt_names = vec![SanType::URI(cluster_uri(cluster).try_into()?)];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        let pair = PemPair {
            certificate: certificate.clone(),
            key: key.serialize_pem(),
        };
        let authority = Self {
            cluster: cluster.clone(),
            not_after: validity.not_after,
            issuer: Issuer::new(params, key),
            certificate,
        };
        Ok((authority, pair))
    }

    /// Takes up a CA again from its two files.
    ///
    /// # Errors
    ///
    /// Files that are broken, don't belong together, or are no CA of a cluster.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, CertificateError> {
        let malformed = |_| CertificateError::MalformedCa;
        let pem = first_block(certificate, "CERTIFICATE").ok_or(CertificateError::MalformedCa)?;
        let parsed = pem.parse_x509().map_err(malformed)?;
        let subject = || parsed.subject().to_string();
        if !parsed.is_ca() {
            return Err(CertificateError::NotACa { subject: subject() });
        }
        let cluster = cluster_of(&parsed)
            .ok_or_else(|| CertificateError::NoCluster { subject: subject() })?;
        let key = KeyPair::from_pem(key).map_err(|_| CertificateError::MalformedKey)?;
        if parsed.public_key().subject_public_key.data != key.public_key_raw() {
            return Err(CertificateError::KeyMismatch);
        }
        let not_after = parsed.validity().not_after.to_datetime();
        let issuer = Issuer::from_ca_cert_der(&pem.contents.as_slice().into(), key)?;
        Ok(Self {
            cluster,
            not_after,
            issuer,
            certificate: certificate.to_owned(),
        })
    }

    /// The cluster whose CA it is.
    #[must_use]
    pub const fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// Its last second. No leaf of it may be good for longer.
    #[must_use]
    pub const fn not_after(&self) -> OffsetDateTime {
        self.not_after
    }

    /// Its certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Issues the certificate of a node, for both sides of a connection, under a new key.
    ///
    /// # Errors
    ///
    /// A validity that is none or exceeds the CA's, or a failure of the crypto library.
    pub fn issue_node(
        &self,
        node: PeerId,
        hosts: &[HostName],
        validity: Validity,
    ) -> Result<PemPair, CertificateError> {
        let validity = validity.checked()?;
        if validity.not_after > self.not_after {
            return Err(CertificateError::OutlivesCa {
                ca_not_after: rfc3339(self.not_after),
                asked: rfc3339(validity.not_after),
            });
        }
        let identity = NodeIdentity {
            cluster: self.cluster.clone(),
            node,
        };
        let mut params = params_of(&format!("{} node {node}", self.cluster), validity);
        params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into()?)];
        for host in hosts {
            params.subject_alt_names.push(host.clone().into_san()?);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(PemPair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Signs a revocation list, as PEM. It replaces the earlier ones whole.
    ///
    /// # Errors
    ///
    /// A next update that isn't after this one, or a failure of the crypto library.
    pub fn make_crl(
        &self,
        list: &RevocationList,
        this_update: OffsetDateTime,
    ) -> Result<String, CertificateError> {
        let revoked = |revocation: &Revocation| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&revocation.serial),
            revocation_time: revocation.since,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update,
            next_update: list.next_update,
            crl_number: SerialNumber::from(list.number),
            issuing_distribution_point: None,
            revoked_certs: list.revoked.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(params.signed_by(&self.issuer)?.pem()?)
    }
}

impl RevocationList {
    /// Reads the one list of a PEM file.
    ///
    /// # Errors
    ///
    /// A file that holds no well-formed list, or more than one.
    pub fn from_pem(text: &str) -> Result<Self, CertificateError> {
        let malformed = || CertificateError::MalformedList;
        let pem = first_block(text, "X509 CRL").ok_or_else(malformed)?;
        if text.matches("-----BEGIN X509 CRL-----").count() > 1 {
            return Err(CertificateError::ManyLists);
        }
        let Ok(([], list)) = x509_parser::parse_x509_crl(&pem.contents) else {
            return Err(malformed());
        };
        let number = list.crl_number().map(u64::try_from).transpose();
        let revoked = list.iter_revoked_certificates().map(|entry| Revocation {
            serial: entry.raw_serial().to_vec(),
            since: entry.revocation_date.to_datetime(),
        });
        Ok(Self {
            number: number.map_err(|_| malformed())?.unwrap_or(0),
            next_update: list.next_update().ok_or_else(malformed)?.to_datetime(),
            revoked: revoked.collect(),
        })
    }
}

fn params_of(name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = validity.not_before;
    params.not_after = validity.not_after;
    params
}

fn cluster_uri(cluster: &ClusterName) -> String {
    format!("mraft://{cluster}")
}

/// The cluster that a CA's certificate names.
#[must_use]
pub(crate) fn cluster_of(certificate: &X509Certificate<'_>) -> Option<ClusterName> {
    let names = certificate.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| {
        if let GeneralName::URI(uri) = name {
            uri.strip_prefix("mraft://")?.parse().ok()
        } else {
            None
        }
    })
}

/// The cluster that the first certificate of a PEM file names, as a CA's does.
#[must_use]
pub(crate) fn cluster_named_in(pem: &str) -> Option<ClusterName> {
    let block = first_block(pem, "CERTIFICATE")?;
    cluster_of(&block.parse_x509().ok()?)
}

/// The serial number of the first certificate of a PEM file.
///
/// # Errors
///
/// A file that holds no well-formed certificate.
pub fn leaf_serial(pem: &str) -> Result<Vec<u8>, CertificateError> {
    let block = first_block(pem, "CERTIFICATE").ok_or(CertificateError::MalformedLeaf)?;
    let leaf = block
        .parse_x509()
        .map_err(|_| CertificateError::MalformedLeaf)?;
    Ok(leaf.raw_serial().to_vec())
}

fn first_block(text: &str, label: &str) -> Option<Pem> {
    let mut blocks = Pem::iter_from_buffer(text.as_bytes()).map_while(Result::ok);
    blocks.find(|block| block.label == label)
}

#[cfg(test)]
mod tests;
