//! A raw TLS session with a real transport, on either side of it. Whatever a test wants said is
//! said, in any bytes; whatever the transport says is held against `plans/wire.md`: sequence, tag
//! and lane of each message.
//!
//! The persona's certificate is a valid one of the fleet: TLS finds nothing wrong with it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::wire::{CONTROL, Hello, Key, Keys, Message, context, kind};
use crate::certs::Fleet;
use crate::{connect_from, soon};

const ALPN: &[u8] = b"mraft/1";

/// Bytes that the socket of a rogue acceptor takes in before its sender is stopped, as asked of
/// the kernel.
const SOCKET_BYTES: u32 = 16 << 10;

/// A node that the rogue has a valid certificate of.
#[derive(Clone, Debug)]
pub struct Persona {
    number: u32,
    cluster: String,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    dials: Arc<AtomicU32>,
}

/// The rogue doesn't care whom it dials.
#[derive(Debug)]
struct AnyServer(Vec<SignatureScheme>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

impl Persona {
    /// Node `number` of `cluster`, by a certificate that the fleet issues now.
    ///
    /// # Panics
    /// When the fleet or TLS won't have it.
    #[must_use]
    pub fn of(fleet: &Fleet, cluster: &str, number: u32) -> Self {
        let files = fleet.files(number);
        let chain = || {
            let pems = CertificateDer::pem_file_iter(&files.cert).expect("a chain");
            pems.map(|pem| pem.expect("a certificate")).collect()
        };
        let key = || PrivateKeyDer::from_pem_file(&files.key).expect("a key");
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(&files.ca).expect("a CA");
        roots.add(ca).expect("a CA that TLS can read");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let schemes = provider
            .signature_verification_algorithms
            .supported_schemes();
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(schemes)))
            .with_client_auth_cert(chain(), key())
            .expect("a client's certificate");
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.enable_sni = false;
        client.resumption = rustls::client::Resumption::disabled();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_client_cert_verifier(verifier.build().expect("a verifier"))
            .with_single_cert(chain(), key())
            .expect("a server's certificate");
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        Self {
            number,
            cluster: cluster.to_owned(),
            client: client.into(),
            server: server.into(),
            dials: Arc::default(),
        }
    }

    /// A truthful hello to `to`, with the limits that a node has by default.
    #[must_use]
    pub fn hello(&self, to: u32, lane: u8) -> Hello {
        Hello {
            versions: [1, 1],
            from: self.number,
            to,
            incarnation: [u8::try_from(self.number).unwrap_or(u8::MAX); 16],
            boot: 5,
            life: 11,
            sync_number: 7,
            window_frames: 16,
            frame_items: 4096,
            frame_bytes: if lane == CONTROL { 65_536 } else { 262_144 },
            window_bytes: 4 << 20,
            cluster: self.cluster.clone(),
            settings: Vec::new(),
        }
    }

    /// TLS to node `to`, and nothing said yet.
    ///
    /// # Panics
    /// When there is no TLS.
    pub async fn dial(&self, address: SocketAddr, to: u32, lane: u8) -> Session {
        let stream = connect_from(self.next_source(), address).await;
        stream.set_nodelay(true).expect("no delay");
        let connector = TlsConnector::from(Arc::clone(&self.client));
        let name = ServerName::from(address.ip());
        let tls = soon("TLS", connector.connect(name, stream))
            .await
            .expect("TLS");
        Session::new(self, Side::Dialler, to, lane, tls.into())
    }

    /// An address of loopback for each dial: what is tested here is what a session does, not how
    /// many failures one source may have.
    fn next_source(&self) -> Ipv4Addr {
        let [.., high, low] = self.dials.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        Ipv4Addr::new(127, 1, high, low.max(1))
    }

    /// A session to node `to` that is up.
    ///
    /// # Panics
    /// When it doesn't come up.
    pub async fn dial_up(&self, address: SocketAddr, to: u32, lane: u8) -> Session {
        self.dial_up_with(address, to, lane, &self.hello(to, lane))
            .await
    }

    /// A session that came up by this hello.
    ///
    /// # Panics
    /// When it doesn't come up.
    pub async fn dial_up_with(
        &self,
        address: SocketAddr,
        to: u32,
        lane: u8,
        hello: &Hello,
    ) -> Session {
        let mut session = self.dial(address, to, lane).await;
        session.send_hello(hello).await;
        let (answer, _) = session.read().await.expect("an answer");
        assert_eq!(answer.kind, kind::ANSWER, "{answer:?}");
        session
    }
}

/// Where a persona can be dialled.
#[derive(Debug)]
pub struct Listener {
    persona: Persona,
    tcp: TcpListener,
    /// Sessions on lanes that nobody asked for, kept up.
    parked: Vec<Session>,
}

impl Listener {
    /// Listens on a free port of loopback.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn start(persona: Persona) -> Self {
        let listen = || {
            let socket = TcpSocket::new_v4()?;
            // Accepted sockets take it over.
            socket.set_recv_buffer_size(SOCKET_BYTES)?;
            socket.bind(([127, 0, 0, 1], 0).into())?;
            socket.listen(64)
        };
        Self {
            persona,
            tcp: listen().expect("a listener"),
            parked: Vec::new(),
        }
    }

    /// Where it can be dialled.
    ///
    /// # Panics
    /// When the socket doesn't know.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.tcp.local_addr().expect("its address")
    }

    /// The next connection from node `from` that got through TLS, and nothing read yet; a
    /// connection that was given up meanwhile is passed over.
    ///
    /// # Panics
    /// When none comes.
    pub async fn accept(&self, from: u32) -> Session {
        let next = async {
            loop {
                let (stream, _) = self.tcp.accept().await.expect("a connection");
                stream.set_nodelay(true).expect("no delay");
                let acceptor = TlsAcceptor::from(Arc::clone(&self.persona.server));
                if let Ok(tls) = acceptor.accept(stream).await {
                    return tls;
                }
            }
        };
        let tls = soon("a dial", next).await;
        Session::new(&self.persona, Side::Acceptor, from, CONTROL, tls.into())
    }

    /// The next session on this lane, its hello read and not answered. Sessions on the other lane
    /// are answered and kept, for as long as no new one of that lane comes.
    ///
    /// # Panics
    /// When none comes.
    pub async fn dialled(&mut self, from: u32, lane: u8) -> Session {
        loop {
            let mut session = self.accept(from).await;
            if session.read().await.is_none() {
                continue;
            }
            if session.lane == lane {
                return session;
            }
            session.answer_truly().await;
            self.parked.retain(|parked| parked.lane != session.lane);
            self.parked.push(session);
        }
    }

    /// The next session on this lane, up.
    ///
    /// # Panics
    /// When none comes.
    pub async fn up(&mut self, from: u32, lane: u8) -> Session {
        let mut session = self.dialled(from, lane).await;
        session.answer_truly().await;
        session
    }
}

/// The rogue's side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Frames go out, replies come in.
    Dialler,
    /// Frames come in, replies go out.
    Acceptor,
}

/// A TLS connection with a transport at the other end.
#[derive(Debug)]
pub struct Session {
    persona: Persona,
    side: Side,
    peer: u32,
    /// The lane's number; for an acceptor control until a hello was read.
    pub lane: u8,
    /// The keys of this lane.
    pub keys: Keys,
    /// The number of the next message, for those who count.
    pub next: u64,
    tls: TlsStream<TcpStream>,
    came: Vec<u8>,
    /// What came so far: the key it was tagged with and its number.
    pub seen: Vec<(Key, u64)>,
    greeted: bool,
    expected: u64,
}

impl Session {
    fn new(persona: &Persona, side: Side, peer: u32, lane: u8, tls: TlsStream<TcpStream>) -> Self {
        let keys = draw_keys(persona, side, peer, lane, &tls);
        Self {
            persona: persona.clone(),
            side,
            peer,
            lane,
            keys,
            next: 1,
            tls,
            came: Vec::new(),
            seen: Vec::new(),
            greeted: false,
            expected: 1,
        }
    }

    /// The keys that this connection has for a lane.
    #[must_use]
    pub fn keys_of(&self, lane: u8) -> Keys {
        draw_keys(&self.persona, self.side, self.peer, lane, &self.tls)
    }

    /// The key of what this side sends once the session is up.
    #[must_use]
    pub const fn own_key(&self) -> &Key {
        match self.side {
            Side::Dialler => &self.keys.frame,
            Side::Acceptor => &self.keys.reply,
        }
    }

    /// Says this, whatever it is. That the other side is no longer there to hear it is no fault.
    pub async fn send(&mut self, bytes: &[u8]) {
        if self.tls.write_all(bytes).await.is_ok() {
            drop(self.tls.flush().await);
        }
    }

    /// Sends the hello as it should be sent.
    pub async fn send_hello(&mut self, hello: &Hello) {
        let hello = Message::new(kind::HELLO, self.lane, 1, hello.body());
        let bytes = hello.sealed(&self.keys.hello);
        self.send(&bytes).await;
    }

    /// An answer with these claims, as it should be.
    #[must_use]
    pub fn answer(&self, hello: &Hello) -> Vec<u8> {
        let body = hello.answer_body(1, 77);
        Message::new(kind::ANSWER, self.lane, 2, body).sealed(&self.keys.hello)
    }

    /// What this side would truthfully say of itself.
    #[must_use]
    pub fn truth(&self) -> Hello {
        self.persona.hello(self.peer, self.lane)
    }

    /// Answers the hello with the truth.
    pub async fn answer_truly(&mut self) {
        let bytes = self.answer(&self.truth());
        self.send(&bytes).await;
    }

    /// The next frame of this side, with a minute left, not sent.
    pub fn frame(&mut self, items: &[&[u8]]) -> Vec<u8> {
        let frame = Message::frame(self.lane, self.next, 60_000, items);
        self.next += 1;
        frame.sealed(&self.keys.frame)
    }

    /// The next reply of this side, *taken* with an empty answer, not sent.
    pub fn reply(&mut self, answers: u64) -> Vec<u8> {
        let reply = Message::reply(self.lane, self.next, answers, 1, Vec::new());
        self.next += 1;
        reply.sealed(&self.keys.reply)
    }

    /// The next message of the transport that is no confirm, and its bytes; `None` once it says no
    /// more.
    ///
    /// # Panics
    /// When it isn't as the wire wants it, or none comes.
    pub async fn read(&mut self) -> Option<(Message, Vec<u8>)> {
        loop {
            match self.read_any().await {
                // Beside the replies, at times that nothing here depends on.
                Some((message, _)) if message.kind == kind::CONFIRM => {}
                other => return other,
            }
        }
    }

    async fn read_any(&mut self) -> Option<(Message, Vec<u8>)> {
        let (message, length) = loop {
            if let Some(found) = Message::first_of(&self.came) {
                break found;
            }
            let mut chunk = [0; 4096];
            match soon("a message", self.tls.read(&mut chunk)).await {
                Ok(bytes) if bytes > 0 => self.came.extend(&chunk[..bytes]),
                Ok(_) | Err(_) => {
                    assert!(self.came.is_empty(), "an end between messages");
                    return None;
                }
            }
        };
        let bytes: Vec<u8> = self.came.drain(..length).collect();
        self.check(&message, &bytes);
        Some((message, bytes))
    }

    /// The next confirm of the transport, whatever it is among.
    ///
    /// # Panics
    /// When it isn't as the wire wants it, or none comes.
    pub async fn confirm(&mut self) -> Message {
        loop {
            match self.read_any().await {
                Some((message, _)) if message.kind == kind::CONFIRM => return message,
                Some(_) => {}
                None => panic!("no confirm came"),
            }
        }
    }

    /// Holds a message of the transport against the wire's rules.
    fn check(&mut self, message: &Message, bytes: &[u8]) {
        if self.side == Side::Acceptor && !self.greeted {
            self.lane = message.lane;
            self.keys = self.keys_of(message.lane);
        }
        let (key, sequence) = match (self.side, self.greeted) {
            (Side::Dialler, false) => (self.keys.hello, 2),
            (Side::Acceptor, false) => (self.keys.hello, 1),
            (Side::Dialler, true) => (self.keys.reply, self.expected),
            (Side::Acceptor, true) => (self.keys.frame, self.expected),
        };
        if self.greeted {
            self.expected += 1;
        }
        self.greeted = true;
        assert_eq!(message.version, super::wire::VERSION, "{message:?}");
        assert_eq!(message.lane, self.lane, "{message:?}");
        assert_eq!(message.sequence, sequence, "{message:?}");
        let (covered, tag) = bytes.split_at(bytes.len() - super::wire::TAG_BYTES);
        assert_eq!(tag, key.tag(sequence, covered), "the tag of {message:?}");
        self.seen.push((key, sequence));
    }

    /// Reads to the transport's end; gives the code of its close, if it sent one.
    ///
    /// # Panics
    /// When what it says isn't as the wire wants it.
    pub async fn last_code(&mut self) -> Option<u16> {
        let mut code = None;
        while let Some((message, _)) = self.read().await {
            assert_eq!(code, None, "nothing follows a close: {message:?}");
            if matches!(message.kind, kind::CLOSE | kind::REFUSAL) {
                code = Some(message.code());
            }
        }
        code
    }

    /// Says goodbye to TLS; reading goes on.
    pub async fn close(&mut self) {
        drop(self.tls.shutdown().await);
    }

    /// Both sockets of a man in the middle, for one who passes bytes on.
    #[must_use]
    pub fn into_tls(self) -> TlsStream<TcpStream> {
        self.tls
    }
}

fn draw_keys(
    persona: &Persona,
    side: Side,
    peer: u32,
    lane: u8,
    tls: &TlsStream<TcpStream>,
) -> Keys {
    let (dialler, acceptor) = match side {
        Side::Dialler => (persona.number, peer),
        Side::Acceptor => (peer, persona.number),
    };
    let context = context(&persona.cluster, lane, dialler, acceptor);
    Keys::draw(&context, |label, context| {
        let exported = match tls {
            TlsStream::Client(tls) => {
                let (_, tls) = tls.get_ref();
                tls.export_keying_material([0; 32], label, Some(context))
            }
            TlsStream::Server(tls) => {
                let (_, tls) = tls.get_ref();
                tls.export_keying_material([0; 32], label, Some(context))
            }
        };
        exported.expect("exported bytes")
    })
}
