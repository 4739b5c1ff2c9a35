//! TLS configurations, one for each connection, and the judge that puts into words what became of
//! it. The configurations are the same for all: TLS 1.3 alone, certificates on both sides, no
//! resumption, no tickets, no early data, one protocol name. Driving the handshake is `io/tls.rs`'s
//! business.
//!
//! Both kinds share their key and trust with the credentials they were made from and stay valid
//! after these are replaced, so a reload reaches every connection begun after it.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::{AlertDescription, ClientConfig, CommonState, ConnectionCommon, ServerConfig};
use rustls_pki_types::ServerName;

use super::certificate::{CertificateFacts, PeerCertificate, printable};
use super::trust::{Verdict, Verifier, is_named};
use super::{ALPN, Credentials};
use crate::error::{PeerIncompatible, SessionEnd, TlsFault};
use crate::id::NodeIdentity;

/// What one outgoing connection needs. It is good for one connection only, since the judge
/// remembers that one's verdict.
#[derive(Debug)]
pub struct Dial {
    config: Arc<ClientConfig>,
    judge: Judge,
}

/// What one incoming connection needs; likewise good for one.
#[derive(Debug)]
pub struct Accept {
    config: Arc<ServerConfig>,
    judge: Judge,
}

/// How far a connection has come, which decides what its end means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing from the other side has been decrypted and believed yet. A dialler is here until
    /// its first read after the handshake: only that tells whether its certificate was accepted.
    Handshake,
    /// Application bytes have come.
    Session,
}

/// Puts the end of one connection into words: which certificate, which file, which name.
#[derive(Clone, Debug)]
pub struct Judge {
    verdict: Verdict,
    expected: Option<NodeIdentity>,
    cert: String,
    ours: Arc<CertificateFacts>,
}

impl Dial {
    pub(super) fn new(credentials: &Credentials, expected: &NodeIdentity) -> Self {
        let inner = &credentials.0;
        let judge = Judge::new(credentials, Some(expected.clone()));
        let verifier = Verifier {
            trust: inner.trust.clone(),
            verdict: judge.verdict.clone(),
            expected: judge.expected.clone(),
        };
        let mut config = inner
            .client
            .clone()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(inner.own.clone())));
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        config.enable_sni = false;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Self {
            config: Arc::new(config),
            judge,
        }
    }

    /// The configuration for the connection.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// The name that the TLS library wants to be given. It isn't sent and not checked: who was
    /// reached is settled by the URI name.
    #[must_use]
    pub fn server_name(&self) -> ServerName<'static> {
        ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
    }

    /// The judge of the connection.
    #[must_use]
    pub const fn judge(&self) -> &Judge {
        &self.judge
    }
}

impl Accept {
    pub(super) fn new(credentials: &Credentials) -> Self {
        let inner = &credentials.0;
        let judge = Judge::new(credentials, None);
        let verifier = Verifier {
            trust: inner.trust.clone(),
            verdict: judge.verdict.clone(),
            expected: None,
        };
        let mut config = inner
            .server
            .clone()
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(inner.own.clone())));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Self {
            config: Arc::new(config),
            judge,
        }
    }

    /// The configuration for the connection.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// The judge of the connection.
    #[must_use]
    pub const fn judge(&self) -> &Judge {
        &self.judge
    }
}

impl Judge {
    fn new(credentials: &Credentials, expected: Option<NodeIdentity>) -> Self {
        let inner = &credentials.0;
        Self {
            verdict: Arc::new(OnceLock::new()),
            expected,
            cert: inner.files.cert.display().to_string(),
            ours: inner.facts.clone(),
        }
    }

    /// Who is at the other end, once the handshake is over. On the dialling side it is the node
    /// dialled; on the accepting side any node of any cluster under the CA, and whether it may
    /// connect is for the caller to say.
    ///
    /// # Errors
    ///
    /// A protocol other than ours was agreed on, or the certificate names no node, or another one
    /// than was dialled.
    pub fn peer(&self, connection: &CommonState) -> Result<PeerCertificate, SessionEnd> {
        match connection.alpn_protocol() {
            Some(ALPN) => {}
            other => {
                let got = other.map_or_else(String::new, |name| {
                    printable(&String::from_utf8_lossy(name))
                });
                return Err(TlsFault::OtherProtocol { got }.into());
            }
        }
        let chain = connection.peer_certificates();
        let peer =
            PeerCertificate::read(chain).map_err(|fault| PeerIncompatible::NoIdentity { fault })?;
        if let (Some(expected), Some(leaf)) = (&self.expected, peer.chain().first()) {
            is_named(leaf, expected)?;
        }
        Ok(peer)
    }

    /// Why the connection ended, of an error that reading or writing gave.
    #[must_use]
    pub fn end_of(&self, error: &io::Error, stage: Stage) -> SessionEnd {
        let tls = error
            .get_ref()
            .and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match tls {
            Some(fault) => self.end_of_tls(fault, stage),
            None => self.end_of_io(error.kind(), stage),
        }
    }

    /// Why the connection ended, where the socket gave an end of file or an error of this kind.
    #[must_use]
    pub fn end_of_io(&self, kind: io::ErrorKind, stage: Stage) -> SessionEnd {
        let closed = [
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::BrokenPipe,
        ];
        if let Some(verdict) = self.verdict.get() {
            verdict.clone()
        } else if stage == Stage::Handshake && closed.contains(&kind) {
            TlsFault::ClosedInHandshake.into()
        } else {
            SessionEnd::Io { kind }
        }
    }

    /// Why the connection ended, of an error of the TLS library.
    #[must_use]
    pub fn end_of_tls(&self, error: &rustls::Error, stage: Stage) -> SessionEnd {
        match self.verdict.get() {
            Some(verdict) => verdict.clone(),
            None => self.fault_of(error, stage).into(),
        }
    }

    fn fault_of(&self, error: &rustls::Error, stage: Stage) -> TlsFault {
        use rustls::InvalidMessage as Invalid;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is foreign and open"
        )]
        match error {
            rustls::Error::InvalidMessage(
                Invalid::InvalidContentType
                | Invalid::UnknownProtocolVersion
                | Invalid::MessageTooLarge
                | Invalid::MessageTooShort
                | Invalid::InvalidEmptyPayload
                | Invalid::HandshakePayloadTooLarge
                | Invalid::MissingData(_)
                | Invalid::UnexpectedMessage(_),
            ) if stage == Stage::Handshake => TlsFault::NotTls,
            rustls::Error::NoCertificatesPresented => TlsFault::NoCertificate,
            rustls::Error::PeerIncompatible(_) => TlsFault::NothingInCommon,
            rustls::Error::NoApplicationProtocol => TlsFault::OtherProtocol { got: String::new() },
            rustls::Error::AlertReceived(alert) => self.fault_of_alert(*alert),
            rustls::Error::InvalidCertificate(fault) => TlsFault::BadCertificate {
                subject: "the other side".to_owned(),
                fault: fault.to_string(),
            },
            other => TlsFault::Failed {
                fault: printable(&other.to_string()),
            },
        }
    }

    fn fault_of_alert(&self, alert: AlertDescription) -> TlsFault {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is foreign and open"
        )]
        let name = match alert {
            AlertDescription::UnknownCA => "unknown_ca",
            AlertDescription::BadCertificate => "bad_certificate",
            AlertDescription::UnsupportedCertificate => "unsupported_certificate",
            AlertDescription::CertificateRevoked => "certificate_revoked",
            AlertDescription::CertificateExpired => "certificate_expired",
            AlertDescription::CertificateUnknown => "certificate_unknown",
            AlertDescription::CertificateRequired => "certificate_required",
            AlertDescription::AccessDenied => "access_denied",
            AlertDescription::NoApplicationProtocol => {
                return TlsFault::OtherProtocol { got: String::new() };
            }
            AlertDescription::ProtocolVersion
            | AlertDescription::HandshakeFailure
            | AlertDescription::InsufficientSecurity => return TlsFault::NothingInCommon,
            other => {
                let alert = format!("{other:?}");
                return TlsFault::Alert { alert };
            }
        };
        TlsFault::OursRefused {
            cert: self.cert.clone(),
            alert: name.to_owned(),
            subject: self.ours.subject.clone(),
            issuer: self.ours.issuer.clone(),
        }
    }
}

/// Draws a key from a connection's secrets; equal on both ends, different for each connection,
/// label and context.
///
/// # Errors
///
/// The handshake isn't over yet.
pub fn export_key<Side>(
    connection: &ConnectionCommon<Side>,
    label: &str,
    context: &[u8],
) -> Result<[u8; 32], TlsFault> {
    connection
        .export_keying_material([0; 32], label.as_bytes(), Some(context))
        .map_err(|error| TlsFault::Failed {
            fault: error.to_string(),
        })
}
