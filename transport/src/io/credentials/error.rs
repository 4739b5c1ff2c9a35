//! Why a set of credential files can't be used: each fault names its file and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::error::IdentityFault;
use crate::id::NodeIdentity;

/// What a credential file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The CA certificates.
    Ca,
    /// The node's chain.
    Cert,
    /// The leaf's private key.
    Key,
    /// The revocation lists.
    Crl,
}

impl Role {
    /// The label of the PEM blocks in such a file.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ca | Self::Cert => "CERTIFICATE",
            Self::Key => "PRIVATE KEY",
            Self::Crl => "X509 CRL",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ca => "CA file",
            Self::Cert => "certificate file",
            Self::Key => "key file",
            Self::Crl => "revocation list",
        })
    }
}

/// A fault of the credential files. Nothing of the set is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// No such file.
    #[error("{role} {} does not exist; create it or correct its path", file.display())]
    Missing {
        /// What it is for.
        role: Role,
        /// The path.
        file: PathBuf,
    },
    /// The process may not read it.
    #[error("{role} {} may not be read by this user; change its owner or mode", file.display())]
    Denied {
        /// What it is for.
        role: Role,
        /// The path.
        file: PathBuf,
    },
    /// A folder, a pipe or a device.
    #[error("{role} {} is not a regular file; name the file itself", file.display())]
    NotAFile {
        /// What it is for.
        role: Role,
        /// The path.
        file: PathBuf,
    },
    /// Another fault of reading.
    #[error("{role} {} can't be read: {kind}; check the path and the disk", file.display())]
    Unreadable {
        /// What it is for.
        role: Role,
        /// The path.
        file: PathBuf,
        /// The kind of fault.
        kind: io::ErrorKind,
    },
    /// Longer than any such file should be.
    #[error(
        "{role} {} is longer than {bytes_max} bytes; is it the right file?",
        file.display()
    )]
    TooLong {
        /// What it is for.
        role: Role,
        /// The path.
        file: PathBuf,
        /// The bound.
        bytes_max: u64,
    },
    /// Nothing in it looks like PEM.
    #[error(
        "{role} {} holds no PEM; it must contain \"-----BEGIN {}-----\"",
        file.display(), role.label()
    )]
    NotPem {
        /// What it is for.
        role: Role,
        /// The path.
        file: PathBuf,
    },
    /// PEM of another kind.
    #[error(
        "{role} {} holds a PEM block {got:?} where {:?} is expected; are two paths swapped?",
        file.display(), role.label()
    )]
    WrongPem {
        /// What it is for.
        role: Role,
        /// The path.
        file: PathBuf,
        /// The label found.
        got: String,
    },
    /// PEM that ends too soon or isn't base64.
    #[error("{role} {} holds broken PEM; copy it again from its source", file.display())]
    BrokenPem {
        /// What it is for.
        role: Role,
        /// The path.
        file: PathBuf,
    },
    /// A block whose contents aren't what its label says.
    #[error(
        "block {position} of the {role} {} is not a well-formed {}; issue it anew",
        file.display(), role.label()
    )]
    Malformed {
        /// What it is for.
        role: Role,
        /// The path.
        file: PathBuf,
        /// Which block, from 1.
        position: usize,
    },
    /// A key under a passphrase, which nobody is there to type.
    #[error(
        "key file {} is encrypted, and a node can't ask for its passphrase; \
         store the key unencrypted with mode 0600",
        file.display()
    )]
    EncryptedKey {
        /// The path.
        file: PathBuf,
    },
    /// More keys than one.
    #[error("key file {} holds {got} private keys; leave only the leaf's", file.display())]
    ManyKeys {
        /// The path.
        file: PathBuf,
        /// How many.
        got: usize,
    },
    /// A kind of key that the TLS library can't sign with.
    #[error(
        "key file {} holds a key of an unsupported kind; use ECDSA P-256, Ed25519 or RSA 2048 \
         and up",
        file.display()
    )]
    UnsupportedKey {
        /// The path.
        file: PathBuf,
    },
    /// The key is another certificate's.
    #[error(
        "key file {} does not belong to the first certificate in {}; use the pair that was made \
         together",
        key.display(), cert.display()
    )]
    KeyMismatch {
        /// The certificate file.
        cert: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The leaf doesn't name one node.
    #[error(
        "certificate file {} names no node: {fault}; issue it with the one URI name \
         mraft://CLUSTER/node/NUMBER",
        cert.display()
    )]
    NamesNoNode {
        /// The certificate file.
        cert: PathBuf,
        /// What the leaf has instead.
        fault: IdentityFault,
    },
    /// The leaf names another node, or one of another cluster.
    #[error(
        "certificate file {} is for {got}, but this node is {expected}; use this node's \
         certificate or correct its configuration",
        cert.display()
    )]
    NamesAnother {
        /// The certificate file.
        cert: PathBuf,
        /// This node.
        expected: NodeIdentity,
        /// The certificate's.
        got: NodeIdentity,
    },
    /// A certificate in the CA file that may not issue others.
    #[error(
        "CA file {} holds the certificate of {subject}, which is no CA; put the issuer's \
         certificate there",
        ca.display()
    )]
    NotACa {
        /// The CA file.
        ca: PathBuf,
        /// The certificate's subject.
        subject: String,
    },
    /// The leaf doesn't chain to the CA set.
    #[error(
        "certificate file {}: {subject} was issued by {issuer}, which is not in the CA file {}; \
         use the CA that issued it",
        cert.display(), ca.display()
    )]
    UntrustedLeaf {
        /// The certificate file.
        cert: PathBuf,
        /// The leaf's subject.
        subject: String,
        /// The leaf's issuer.
        issuer: String,
        /// The CA file.
        ca: PathBuf,
    },
    /// The leaf, or an issuer of it, has expired.
    #[error(
        "certificate file {}: certificate of {subject} expired at {not_after}; renew it",
        cert.display()
    )]
    Expired {
        /// The certificate file.
        cert: PathBuf,
        /// The subject.
        subject: String,
        /// Its last second, RFC 3339.
        not_after: String,
    },
    /// The leaf isn't valid yet.
    #[error(
        "certificate file {}: certificate of {subject} is not valid before {not_before}; \
         check this machine's clock",
        cert.display()
    )]
    NotYetValid {
        /// The certificate file.
        cert: PathBuf,
        /// The subject.
        subject: String,
        /// Its first second, RFC 3339.
        not_before: String,
    },
    /// The leaf is on our own revocation list.
    #[error(
        "certificate file {}: {subject}, serial {serial}, is revoked by the list {}; \
         issue a new certificate",
        cert.display(), crl.display()
    )]
    Revoked {
        /// The certificate file.
        cert: PathBuf,
        /// The leaf's subject.
        subject: String,
        /// Its serial number, in hex.
        serial: String,
        /// The list.
        crl: PathBuf,
    },
    /// The leaf is wrong in another way.
    #[error("certificate file {}: {subject} can't be used: {fault}; issue it anew", cert.display())]
    UnusableLeaf {
        /// The certificate file.
        cert: PathBuf,
        /// The leaf's subject.
        subject: String,
        /// What is wrong.
        fault: String,
    },
    /// A list that none of our CAs signed.
    #[error(
        "revocation list {} is from {issuer} and not signed by any CA in {}; \
         use the list of the same CA",
        crl.display(), ca.display()
    )]
    ListNotSigned {
        /// The list.
        crl: PathBuf,
        /// Who it says it is from.
        issuer: String,
        /// The CA file.
        ca: PathBuf,
    },
    /// A CA without a list, whose certificates would all be refused.
    #[error(
        "revocation list {} has none from {subject}, which {} trusts; add that CA's list, \
         empty if need be",
        crl.display(), ca.display()
    )]
    ListMissing {
        /// The list file.
        crl: PathBuf,
        /// The CA's subject.
        subject: String,
        /// The CA file.
        ca: PathBuf,
    },
    /// A list past the time at which the next one was due.
    #[error("revocation list {} expired at {next_update}; publish a new one", crl.display())]
    ListExpired {
        /// The list.
        crl: PathBuf,
        /// When the next one was due, RFC 3339.
        next_update: String,
    },
    /// Files that changed under every attempt to read them.
    #[error(
        "{} and the files beside it keep changing while they are read; write them elsewhere and \
         rename them into place",
        cert.display()
    )]
    KeepsChanging {
        /// The certificate file.
        cert: PathBuf,
    },
    /// The crypto library lacks TLS 1.3.
    #[error("crypto library has no TLS 1.3; build with aws-lc-rs as it is pinned in Cargo.lock")]
    NoTls13,
}
