use std::fs;
use std::io::{self, Cursor};
use std::sync::Arc;

use rcgen::ExtendedKeyUsagePurpose;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, DigitallySignedStruct, HandshakeKind,
    ServerConfig, ServerConnection, SideData,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::maker::{AGO, AHEAD, Ca, FAR_AHEAD, LONG_AGO, Leaf, Pair, identity, now};
use crate::error::{AuthorityEnded, SessionEnd, TlsFault};
use crate::io::credentials::{
    ALPN, Accept, Credentials, Dial, Presented, Stage, export_key, identity_of,
};

/// One turn of one side: what it has to say goes to the other, whose fault is returned.
fn turn<A: SideData, B: SideData>(
    from: &mut ConnectionCommon<A>,
    to: &mut ConnectionCommon<B>,
) -> Result<usize, io::Error> {
    let mut wire = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut wire).unwrap();
    }
    let sent = wire.len();
    let mut wire = Cursor::new(wire);
    while wire.position() < sent as u64 {
        to.read_tls(&mut wire)?;
        to.process_new_packets()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    }
    Ok(sent)
}

/// Lets both sides talk until nothing more is said or one side fails, alerts included.
fn talk<A: SideData, B: SideData>(
    client: &mut ConnectionCommon<A>,
    server: &mut ConnectionCommon<B>,
) -> (Option<io::Error>, Option<io::Error>) {
    let (mut client_fault, mut server_fault) = (None, None);
    loop {
        let mut said = 0;
        match turn(client, server) {
            Ok(bytes) => said += bytes,
            Err(error) => {
                server_fault.get_or_insert(error);
            }
        }
        match turn(server, client) {
            Ok(bytes) => said += bytes,
            Err(error) => {
                client_fault.get_or_insert(error);
            }
        }
        if said == 0 {
            return (client_fault, server_fault);
        }
    }
}

fn connect(dial: &Dial, accept: &Accept) -> (ClientConnection, ServerConnection) {
    (
        ClientConnection::new(dial.config(), dial.server_name()).unwrap(),
        ServerConnection::new(accept.config()).unwrap(),
    )
}

/// What each side says of a handshake: `None` where it is content.
struct Said {
    dialler: Option<SessionEnd>,
    acceptor: Option<SessionEnd>,
}

impl Said {
    fn dialler(&self) -> String {
        self.dialler
            .as_ref()
            .map_or_else(String::new, ToString::to_string)
    }

    fn acceptor(&self) -> String {
        self.acceptor
            .as_ref()
            .map_or_else(String::new, ToString::to_string)
    }
}

fn handshake(dialler: &Credentials, wanted: (&str, u32), acceptor: &Credentials) -> Said {
    let dial = dialler.dial(&identity(wanted.0, wanted.1));
    let accept = acceptor.accept();
    let (mut client, mut server) = connect(&dial, &accept);
    let (at_dialler, at_acceptor) = talk(&mut client, &mut server);
    Said {
        dialler: at_dialler.map(|error| dial.judge().end_of(&error, Stage::Handshake)),
        acceptor: at_acceptor.map(|error| accept.judge().end_of(&error, Stage::Handshake)),
    }
}

/// A side that believes everything and shows whatever certificate it is given.
#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn private(pair: &Pair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::try_from(pair.key.serialize_der()).unwrap()
}

fn rogue_client(pair: Option<&Pair>, alpn: &[&[u8]]) -> ClientConnection {
    let config = rogue_client_config(pair, alpn);
    ClientConnection::new(config, "rogue".try_into().unwrap()).unwrap()
}

fn rogue_client_config(pair: Option<&Pair>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible));
    let mut config = match pair {
        Some(pair) => config
            .with_client_auth_cert(vec![pair.der.clone()], private(pair))
            .unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

fn rogue_server(pair: &Pair, alpn: &[&[u8]]) -> ServerConnection {
    ServerConnection::new(rogue_server_config(pair, alpn)).unwrap()
}

fn rogue_server_config(pair: &Pair, alpn: &[&[u8]]) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.der.clone()], private(pair))
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

/// What our dialler says of a rogue acceptor with this certificate.
fn dialled(ours: &Credentials, wanted: (&str, u32), pair: &Pair) -> String {
    let dial = ours.dial(&identity(wanted.0, wanted.1));
    let mut client = ClientConnection::new(dial.config(), dial.server_name()).unwrap();
    let (fault, _) = talk(&mut client, &mut rogue_server(pair, &[ALPN]));
    fault.map_or_else(String::new, |error| {
        dial.judge().end_of(&error, Stage::Handshake).to_string()
    })
}

/// What our acceptor says of a rogue dialler with this certificate.
fn accepted(ours: &Credentials, pair: Option<&Pair>) -> String {
    let accept = ours.accept();
    let mut server = ServerConnection::new(accept.config()).unwrap();
    let (_, fault) = talk(&mut rogue_client(pair, &[ALPN]), &mut server);
    match fault {
        Some(error) => accept.judge().end_of(&error, Stage::Handshake).to_string(),
        None => accept
            .judge()
            .peer(&server)
            .map_or_else(|end| end.to_string(), |_| String::new()),
    }
}

#[test]
fn two_nodes_of_a_cluster_learn_each_other() {
    let ca = Ca::new("dev CA");
    let (one, two) = (ca.node("dev", 1), ca.node("dev", 2));
    let (dial, accept) = (one.dial(&identity("dev", 2)), two.accept());
    let (mut client, mut server) = connect(&dial, &accept);
    let (at_dialler, at_acceptor) = talk(&mut client, &mut server);
    assert!(at_dialler.is_none() && at_acceptor.is_none());
    let seen = dial.judge().peer(&client).unwrap();
    assert_eq!(seen.facts(), two.facts());
    let seen = accept.judge().peer(&server).unwrap();
    assert_eq!(seen.facts(), one.facts());
    assert_eq!(seen.facts().serial, "07");
    assert_eq!(seen.facts().not_after, FAR_AHEAD.unix_timestamp());
    assert_eq!(
        client.protocol_version(),
        Some(rustls::ProtocolVersion::TLSv1_3)
    );
}

#[test]
fn exported_keys_are_equal_on_both_ends_and_differ_by_label_context_and_connection() {
    let ca = Ca::new("dev CA");
    let (one, two) = (ca.node("dev", 1), ca.node("dev", 2));
    let mut keys = Vec::new();
    for _ in 0..2 {
        let (dial, accept) = (one.dial(&identity("dev", 2)), two.accept());
        let (mut client, mut server) = connect(&dial, &accept);
        assert!(
            export_key(&client, "a", b"x").is_err(),
            "before the handshake"
        );
        talk(&mut client, &mut server);
        for (label, context) in [("a", b"x"), ("a", b"y"), ("b", b"x")] {
            let key = export_key(&client, label, context).unwrap();
            assert_eq!(key, export_key(&server, label, context).unwrap());
            assert!(!keys.contains(&key));
            keys.push(key);
        }
    }
}

#[test]
fn a_second_connection_is_never_resumed() {
    let ca = Ca::new("dev CA");
    let (one, two) = (ca.node("dev", 1), ca.node("dev", 2));
    // One configuration used twice: the only way in which a ticket could be found again.
    let (dial, accept) = (one.dial(&identity("dev", 2)), two.accept());
    for _ in 0..2 {
        let (mut client, mut server) = connect(&dial, &accept);
        talk(&mut client, &mut server);
        assert_eq!(client.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(server.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(client.tls13_tickets_received(), 0);
    }
}

#[test]
fn a_peer_that_would_resume_is_not_resumed_by_either_of_our_sides() {
    let ca = Ca::new("dev CA");
    let ours = ca.node("dev", 1);
    let pair = ca.issue(&Leaf::of(&identity("dev", 2)));
    let (dial, accept) = (ours.dial(&identity("dev", 2)), ours.accept());
    let eager_client = rogue_client_config(Some(&pair), &[ALPN]);
    let eager_server = rogue_server_config(&pair, &[ALPN]);
    for _ in 0..2 {
        let mut client =
            ClientConnection::new(eager_client.clone(), "rogue".try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(accept.config()).unwrap();
        talk(&mut client, &mut server);
        assert_eq!(server.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(client.tls13_tickets_received(), 0);
        let mut client = ClientConnection::new(dial.config(), dial.server_name()).unwrap();
        let mut server = ServerConnection::new(eager_server.clone()).unwrap();
        talk(&mut client, &mut server);
        assert_eq!(client.handshake_kind(), Some(HandshakeKind::Full));
        assert!(
            client.tls13_tickets_received() > 0,
            "the rogue would have resumed"
        );
    }
}

#[test]
fn both_sides_name_the_certificate_that_the_wrong_ca_issued() {
    let (ours, theirs) = (Ca::new("our CA"), Ca::new("their CA"));
    let (one, two) = (ours.node("dev", 1), theirs.node("dev", 2));
    let said = handshake(&one, ("dev", 2), &two);
    let dialler = said.dialler();
    assert!(
        dialler.contains("mraft://dev/node/2 was issued by CN=their CA"),
        "{dialler}"
    );
    assert!(
        dialler.contains(&ours.path("ca.pem").display().to_string()),
        "{dialler}"
    );
    let acceptor = said.acceptor();
    assert!(acceptor.contains("refused our certificate"), "{acceptor}");
    assert!(acceptor.contains("dev-2.pem (unknown_ca)"), "{acceptor}");
    assert!(
        acceptor.contains("do both nodes use the same CA?"),
        "{acceptor}"
    );
}

#[test]
fn a_ca_remade_under_the_same_name_is_told_apart_from_an_unknown_one() {
    let (ours, theirs) = (Ca::new("dev CA"), Ca::new("dev CA"));
    let said = handshake(&ours.node("dev", 1), ("dev", 2), &theirs.node("dev", 2));
    let dialler = said.dialler();
    assert!(
        dialler.contains("another CA that also calls itself CN=dev CA"),
        "{dialler}"
    );
}

#[test]
fn a_dialler_refuses_another_node_and_another_cluster_and_both_sides_know() {
    let ca = Ca::new("shared CA");
    let (one, three) = (ca.node("dev", 1), ca.node("dev", 3));
    let said = handshake(&one, ("dev", 2), &three);
    assert_eq!(said.dialler(), "wrong node: wanted 2, certificate says 3");
    let acceptor = said.acceptor();
    assert!(acceptor.contains("wanted another node"), "{acceptor}");
    let said = handshake(&one, ("dev", 3), &ca.node("prod", 3));
    assert_eq!(
        said.dialler(),
        "wrong cluster: wanted \"dev\", certificate says \"prod\""
    );
}

#[test]
fn expired_and_early_certificates_are_refused_with_their_dates_on_either_side() {
    let ca = Ca::new("dev CA");
    let good = ca.node("dev", 1);
    let expired = ca
        .node_with(&identity("dev", 2), |leaf| leaf.not_after = AGO, |_| {})
        .unwrap();
    let said = handshake(&good, ("dev", 2), &expired);
    assert!(
        said.dialler().contains("expired at 2021-01-01T00:00:00Z"),
        "{}",
        said.dialler()
    );
    assert!(
        said.acceptor().contains("(certificate_expired)"),
        "{}",
        said.acceptor()
    );
    // TLS 1.3: the dialler learns of the refusal at its first read, which `talk` gives it.
    let said = handshake(&expired, ("dev", 1), &good);
    assert!(
        said.acceptor().contains("expired at 2021-01-01T00:00:00Z"),
        "{}",
        said.acceptor()
    );
    assert!(
        said.dialler().contains("(certificate_expired)"),
        "{}",
        said.dialler()
    );
    let early = ca
        .node_with(&identity("dev", 3), |leaf| leaf.not_before = AHEAD, |_| {})
        .unwrap();
    let said = handshake(&early, ("dev", 1), &good);
    assert!(
        said.acceptor()
            .contains("not valid before 2090-01-01T00:00:00Z; check both clocks"),
        "{}",
        said.acceptor()
    );
}

#[test]
fn a_ca_whose_own_time_is_over_vouches_for_nobody() {
    let ca = Ca::lasting("old CA", AGO);
    let (one, two) = (ca.node("dev", 1), ca.node("dev", 2));
    let said = handshake(&one, ("dev", 2), &two);
    assert!(
        said.dialler().contains("CN=old CA expired at 2021-01-01"),
        "{}",
        said.dialler()
    );
}

fn with_list(ca: &Ca, node: u32, list: &str) -> Credentials {
    let path = ca.path("crl.pem");
    fs::write(&path, list).unwrap();
    ca.node_with(
        &identity("dev", node),
        |_| {},
        |files| files.crl = Some(path),
    )
    .unwrap()
}

#[test]
fn a_revoked_certificate_is_refused_with_its_serial_on_either_side() {
    let ca = Ca::new("dev CA");
    let good = with_list(&ca, 1, &ca.list(&[0xabcd], AHEAD));
    let revoked = ca
        .node_with(&identity("dev", 2), |leaf| leaf.serial = 0xabcd, |_| {})
        .unwrap();
    let said = handshake(&revoked, ("dev", 1), &good);
    assert!(
        said.acceptor()
            .contains("serial abcd, is revoked by the list"),
        "{}",
        said.acceptor()
    );
    assert!(said.acceptor().contains("crl.pem"), "{}", said.acceptor());
    assert!(
        said.dialler().contains("(certificate_revoked)"),
        "{}",
        said.dialler()
    );
    let said = handshake(&good, ("dev", 2), &revoked);
    assert!(
        said.dialler().contains("serial abcd, is revoked"),
        "{}",
        said.dialler()
    );
    let other = ca.node("dev", 3);
    let said = handshake(&other, ("dev", 1), &good);
    assert!(said.dialler.is_none() && said.acceptor.is_none());
}

#[test]
fn an_expired_list_refuses_everyone_and_no_list_checks_nobody() {
    let ca = Ca::new("dev CA");
    let stale = with_list(&ca, 1, &ca.list(&[], AGO));
    let other = ca.node("dev", 2);
    let said = handshake(&other, ("dev", 1), &stale);
    let acceptor = said.acceptor();
    assert!(
        acceptor.contains("crl.pem expired at 2021-01-01T00:00:00Z"),
        "{acceptor}"
    );
    assert!(matches!(
        said.acceptor,
        Some(SessionEnd::Tls(TlsFault::ListExpired { .. }))
    ));
    let said = handshake(&other, ("dev", 3), &ca.node("dev", 3));
    assert!(said.dialler.is_none() && said.acceptor.is_none());
}

#[test]
fn rogue_certificates_are_refused_by_our_dialler_and_our_acceptor() {
    let ca = Ca::new("dev CA");
    let ours = ca.node("dev", 1);
    type Spoil = fn(&mut Leaf);
    let cases: [(&str, Spoil, &str); 5] = [
        (
            "no URI",
            |leaf| leaf.uris.clear(),
            "names no node: it has no URI name",
        ),
        (
            "two URIs",
            |leaf| leaf.uris.push("mraft://dev/node/3".to_owned()),
            "names no node: it has 2 URI names, expected 1",
        ),
        (
            "foreign URI",
            |leaf| leaf.uris = vec!["https://dev/node/2".to_owned()],
            "names no node: \"https://dev/node/2\" does not name a node",
        ),
        (
            "expired",
            |leaf| leaf.not_after = AGO,
            "expired at 2021-01-01T00:00:00Z",
        ),
        (
            "early",
            |leaf| leaf.not_before = AHEAD,
            "not valid before 2090-01-01",
        ),
    ];
    for (case, spoil, sentence) in cases {
        let mut leaf = Leaf::of(&identity("dev", 2));
        spoil(&mut leaf);
        let pair = ca.issue(&leaf);
        let said = dialled(&ours, ("dev", 2), &pair);
        assert!(said.contains(sentence), "dialler, {case}: {said}");
        let said = accepted(&ours, Some(&pair));
        assert!(said.contains(sentence), "acceptor, {case}: {said}");
    }
}

#[test]
fn a_certificate_for_one_side_only_is_refused_on_the_other() {
    let ca = Ca::new("dev CA");
    let ours = ca.node("dev", 1);
    let issue = |usages| {
        ca.issue(&Leaf {
            usages,
            ..Leaf::of(&identity("dev", 2))
        })
    };
    let server_only = issue(vec![ExtendedKeyUsagePurpose::ServerAuth]);
    assert_eq!(dialled(&ours, ("dev", 2), &server_only), "");
    let said = accepted(&ours, Some(&server_only));
    assert!(said.contains("extended key usage"), "{said}");
    let client_only = issue(vec![ExtendedKeyUsagePurpose::ClientAuth]);
    assert_eq!(accepted(&ours, Some(&client_only)), "");
    let said = dialled(&ours, ("dev", 2), &client_only);
    assert!(said.contains("extended key usage"), "{said}");
    let unlimited = issue(Vec::new());
    assert_eq!(dialled(&ours, ("dev", 2), &unlimited), "");
    assert_eq!(accepted(&ours, Some(&unlimited)), "");
}

#[test]
fn a_caller_without_a_certificate_is_refused() {
    let ca = Ca::new("dev CA");
    let said = accepted(&ca.node("dev", 1), None);
    assert!(said.contains("sent no certificate"), "{said}");
}

#[test]
fn a_side_that_speaks_tls_for_another_purpose_is_told_apart() {
    let ca = Ca::new("dev CA");
    let ours = ca.node("dev", 1);
    let pair = ca.issue(&Leaf::of(&identity("dev", 2)));
    for alpn in [&[b"h2".as_slice()][..], &[]] {
        let accept = ours.accept();
        let mut server = ServerConnection::new(accept.config()).unwrap();
        let (_, fault) = talk(&mut rogue_client(Some(&pair), alpn), &mut server);
        let end = match fault {
            Some(error) => accept.judge().end_of(&error, Stage::Handshake),
            None => accept.judge().peer(&server).unwrap_err(),
        };
        assert!(end.to_string().contains("not mraft/1"), "{end}");
        let dial = ours.dial(&identity("dev", 2));
        let mut client = ClientConnection::new(dial.config(), dial.server_name()).unwrap();
        let (fault, _) = talk(&mut client, &mut rogue_server(&pair, alpn));
        let end = match fault {
            Some(error) => dial.judge().end_of(&error, Stage::Handshake),
            None => dial.judge().peer(&client).unwrap_err(),
        };
        assert!(end.to_string().contains("not mraft/1"), "{end}");
    }
}

/// A well-formed hello of a TLS 1.2 client.
fn tls12_hello() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([0x5a; 32]);
    body.push(0);
    body.extend([0, 4, 0xc0, 0x2b, 0xc0, 0x2f]);
    body.extend([1, 0]);
    let extensions: &[u8] = &[
        0, 10, 0, 4, 0, 2, 0, 23, // supported_groups: secp256r1
        0, 11, 0, 2, 1, 0, // ec_point_formats: uncompressed
        0, 13, 0, 4, 0, 2, 4, 3, // signature_algorithms: ecdsa_secp256r1_sha256
    ];
    body.extend([0, u8::try_from(extensions.len()).unwrap()]);
    body.extend(extensions);
    let length = u8::try_from(body.len()).unwrap();
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(body);
    record
}

fn acceptor_of_bytes(ours: &Credentials, mut bytes: &[u8]) -> (SessionEnd, Vec<u8>) {
    let accept = ours.accept();
    let mut server = ServerConnection::new(accept.config()).unwrap();
    let mut end = accept
        .judge()
        .end_of_io(io::ErrorKind::UnexpectedEof, Stage::Handshake);
    while !bytes.is_empty() {
        server.read_tls(&mut bytes).unwrap();
        if let Err(error) = server.process_new_packets() {
            end = accept.judge().end_of_tls(&error, Stage::Handshake);
            break;
        }
    }
    let mut answer = Vec::new();
    while server.wants_write() {
        server.write_tls(&mut answer).unwrap();
    }
    (end, answer)
}

#[test]
fn tls_1_2_is_refused_and_told_so() {
    let ours = Ca::new("dev CA").node("dev", 1);
    let (end, alert) = acceptor_of_bytes(&ours, &tls12_hello());
    assert_eq!(end, SessionEnd::Tls(TlsFault::NothingInCommon));
    // A fatal protocol_version alert.
    assert_eq!(alert[5..], [2, 70]);
}

#[test]
fn bytes_that_are_not_tls_are_called_so_on_either_side() {
    let ours = Ca::new("dev CA").node("dev", 1);
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        &[0xff; 64],
    ];
    for bytes in garbage {
        let (end, _) = acceptor_of_bytes(&ours, bytes);
        assert_eq!(end, SessionEnd::Tls(TlsFault::NotTls), "{bytes:?}");
        let dial = ours.dial(&identity("dev", 2));
        let mut client = ClientConnection::new(dial.config(), dial.server_name()).unwrap();
        let mut bytes = bytes;
        client.read_tls(&mut bytes).unwrap();
        let error = client.process_new_packets().unwrap_err();
        let end = dial.judge().end_of_tls(&error, Stage::Handshake);
        assert_eq!(end, SessionEnd::Tls(TlsFault::NotTls));
    }
}

#[test]
fn a_close_inside_the_handshake_is_no_ordinary_end() {
    let ours = Ca::new("dev CA").node("dev", 1);
    let (end, _) = acceptor_of_bytes(&ours, b"");
    assert_eq!(end, SessionEnd::Tls(TlsFault::ClosedInHandshake));
    let eof = io::Error::from(io::ErrorKind::UnexpectedEof);
    let end = ours.accept().judge().end_of(&eof, Stage::Session);
    let kind = io::ErrorKind::UnexpectedEof;
    assert_eq!(end, SessionEnd::Io { kind });
}

#[test]
fn a_live_peer_is_judged_anew_under_new_trust_and_at_a_later_time() {
    let (ca, next) = (Ca::new("dev CA"), Ca::new("next CA"));
    let old = with_list(&ca, 1, &ca.list(&[], AHEAD));
    let two = ca
        .node_with(
            &identity("dev", 2),
            |leaf| {
                leaf.not_after = AHEAD;
                leaf.serial = 0x1234;
            },
            |_| {},
        )
        .unwrap();
    let (dial, accept) = (two.dial(&identity("dev", 1)), old.accept());
    let (mut client, mut server) = connect(&dial, &accept);
    talk(&mut client, &mut server);
    let peer = accept.judge().peer(&server).unwrap();
    let role = Presented::AsClient;
    assert_eq!(old.recheck(&peer, role, now()), Ok(()));
    let unlisted = ca.node("dev", 3);
    let fault = unlisted.recheck(&peer, role, FAR_AHEAD.into()).unwrap_err();
    assert_eq!(fault.authority_ended(), Some(AuthorityEnded::Expired));
    let revoking = with_list(&ca, 1, &ca.list(&[0x1234], AHEAD));
    let fault = revoking.recheck(&peer, role, now()).unwrap_err();
    assert_eq!(fault.authority_ended(), Some(AuthorityEnded::Revoked));
    let fault = next.node("dev", 1).recheck(&peer, role, now()).unwrap_err();
    assert_eq!(fault.authority_ended(), Some(AuthorityEnded::CaRemoved));
}

#[test]
fn an_identity_is_read_from_anything_without_harm() {
    use crate::error::IdentityFault;
    assert_eq!(identity_of(None), Err(IdentityFault::NoCertificate));
    assert_eq!(identity_of(Some(&[])), Err(IdentityFault::NoCertificate));
    let pair = Ca::new("dev CA").issue(&Leaf::of(&identity("dev", 1)));
    let whole = pair.der.as_ref();
    for end in 0..whole.len() {
        let cut = CertificateDer::from(whole[..end].to_vec());
        assert_eq!(identity_of(Some(&[cut])), Err(IdentityFault::Unreadable));
    }
    for at in 0..whole.len() {
        let mut changed = whole.to_vec();
        changed[at] ^= 0x55;
        let _any = identity_of(Some(&[CertificateDer::from(changed)]));
    }
    let early = LONG_AGO.unix_timestamp();
    assert_eq!(identity_of(Some(&[pair.der])).unwrap().not_before, early);
}
