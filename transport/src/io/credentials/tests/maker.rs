//! Certificates made for one test, in a folder of its own, with every part that can be wrong.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use tempfile::TempDir;
use time::OffsetDateTime;
use time::macros::datetime;

use crate::id::NodeIdentity;
use crate::io::credentials::{CredentialError, Credentials, TlsFiles};

pub(super) const LONG_AGO: OffsetDateTime = datetime!(2020-01-01 0:00 UTC);
pub(super) const AGO: OffsetDateTime = datetime!(2021-01-01 0:00 UTC);
pub(super) const AHEAD: OffsetDateTime = datetime!(2090-01-01 0:00 UTC);
pub(super) const FAR_AHEAD: OffsetDateTime = datetime!(2095-01-01 0:00 UTC);

pub(super) fn identity(cluster: &str, node: u32) -> NodeIdentity {
    format!("mraft://{cluster}/node/{node}").parse().unwrap()
}

/// One CA, with its files in a folder.
pub(super) struct Ca {
    pub(super) dir: TempDir,
    pub(super) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A leaf as it should be; tests spoil one part.
pub(super) struct Leaf {
    pub(super) uris: Vec<String>,
    pub(super) not_before: OffsetDateTime,
    pub(super) not_after: OffsetDateTime,
    pub(super) usages: Vec<ExtendedKeyUsagePurpose>,
    pub(super) serial: u64,
}

/// A leaf and its key, as PEM.
pub(super) struct Pair {
    pub(super) cert: String,
    pub(super) der: CertificateDer<'static>,
    pub(super) key: KeyPair,
}

impl Leaf {
    pub(super) fn of(identity: &NodeIdentity) -> Self {
        Self {
            uris: vec![identity.to_string()],
            not_before: LONG_AGO,
            not_after: FAR_AHEAD,
            usages: vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
            serial: 7,
        }
    }
}

fn authority(name: &str, not_after: OffsetDateTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    params.not_before = LONG_AGO;
    params.not_after = not_after;
    params
}

impl Ca {
    pub(super) fn new(name: &str) -> Self {
        Self::lasting(name, FAR_AHEAD)
    }

    pub(super) fn lasting(name: &str, not_after: OffsetDateTime) -> Self {
        let params = authority(name, not_after);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("ca.pem"), &pem).unwrap();
        let issuer = Issuer::new(params, key);
        Self { dir, pem, issuer }
    }

    /// A CA that this one issued, and its certificate.
    pub(super) fn intermediate(&self, name: &str) -> (Self, String) {
        let params = authority(name, FAR_AHEAD);
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        let dir = TempDir::new().unwrap();
        let issuer = Issuer::new(params, key);
        let between = Self {
            dir,
            pem: pem.clone(),
            issuer,
        };
        (between, pem)
    }

    pub(super) fn issue(&self, leaf: &Leaf) -> Pair {
        let mut params = CertificateParams::default();
        let name = leaf.uris.first().map_or("nobody", String::as_str);
        params.distinguished_name.push(DnType::CommonName, name);
        let uri = |uri: &String| SanType::URI(uri.as_str().try_into().unwrap());
        params.subject_alt_names = leaf.uris.iter().map(uri).collect();
        params.not_before = leaf.not_before;
        params.not_after = leaf.not_after;
        params.extended_key_usages = leaf.usages.clone();
        params.serial_number = Some(SerialNumber::from(leaf.serial));
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pair {
            cert: certificate.pem(),
            der: certificate.der().clone(),
            key,
        }
    }

    pub(super) fn list(&self, serials: &[u64], next_update: OffsetDateTime) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: LONG_AGO,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: LONG_AGO,
            next_update,
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a leaf's files under a name of their own; the CA file is this CA's.
    pub(super) fn store(&self, name: &str, pair: &Pair) -> TlsFiles {
        let files = TlsFiles {
            ca: self.path("ca.pem"),
            cert: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}-key.pem")),
            crl: None,
        };
        fs::write(&files.cert, &pair.cert).unwrap();
        fs::write(&files.key, pair.key.serialize_pem()).unwrap();
        files
    }

    pub(super) fn node(&self, cluster: &str, node: u32) -> Credentials {
        self.node_with(&identity(cluster, node), |_| {}, |_| {})
            .unwrap()
    }

    /// Credentials with one part of the leaf, and of the files, other than it should be.
    pub(super) fn node_with(
        &self,
        identity: &NodeIdentity,
        spoil: impl FnOnce(&mut Leaf),
        spoil_files: impl FnOnce(&mut TlsFiles),
    ) -> Result<Credentials, CredentialError> {
        let mut leaf = Leaf::of(identity);
        spoil(&mut leaf);
        let name = format!("{}-{}", identity.cluster, identity.node);
        let mut files = self.store(&name, &self.issue(&leaf));
        spoil_files(&mut files);
        Credentials::load_at_any_age(&files, identity, now())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the TLS library reads the same clock"
)]
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}
