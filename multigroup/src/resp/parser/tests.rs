use proptest::prelude::*;

use super::*;

fn request(args: &[Bytes]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Everything that a parser makes of bytes that arrive whole.
fn parse_all(bytes: &[u8]) -> (Vec<Vec<Bytes>>, Option<ProtocolError>) {
    parse_pieces(std::iter::once(bytes))
}

fn parse_pieces<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<Vec<Bytes>>, Option<ProtocolError>) {
    let (mut parser, mut buffer, mut requests) = (Parser::new(), BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match parser.next(&mut buffer) {
                Ok(Some(args)) => requests.push(args),
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

fn one(bytes: &[u8]) -> Vec<Bytes> {
    let (mut requests, error) = parse_all(bytes);
    assert_eq!(
        (requests.len(), error),
        (1, None),
        "{}",
        bytes.escape_ascii()
    );
    requests.remove(0)
}

fn fault(bytes: &[u8]) -> String {
    parse_all(bytes)
        .1
        .map_or_else(|| "no fault".to_owned(), |error| error.to_string())
}

#[test]
fn an_array_of_bulk_strings_is_a_request() {
    assert_eq!(
        one(b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n"),
        ["GET".into(), Bytes::from("a\r\n")]
    );
    assert_eq!(one(b"*1\r\n$0\r\n\r\n"), [Bytes::new()]);
}

#[test]
fn an_inline_line_is_a_request() {
    assert_eq!(one(b"GET a\r\n"), ["GET", "a"]);
    assert_eq!(one(b"  GET\t a  \n"), ["GET", "a"]);
    assert_eq!(
        one(b"SET a \"b c\\n\\x41\\q\"\r\n"),
        ["SET", "a", "b c\nAq"]
    );
    assert_eq!(one(b"SET a 'b \\' \\n'\r\n"), ["SET", "a", "b ' \\n"]);
    assert_eq!(one(b"SET a \"\"\r\n"), ["SET", "a", ""]);
}

#[test]
fn empty_requests_are_skipped() {
    assert_eq!(one(b"\r\n*0\r\n*-1\r\n  \r\nPING\r\n"), ["PING"]);
}

#[test]
fn pipelined_requests_come_out_in_order() {
    let (requests, error) = parse_all(b"*1\r\n$1\r\na\r\nb\r\n*1\r\n$1\r\nc\r\n*1\r\n$1");
    assert_eq!(
        (requests, error),
        (
            vec![vec!["a".into()], vec!["b".into()], vec!["c".into()]],
            None
        )
    );
}

#[test]
fn faults_are_named_as_redis_names_them() {
    assert_eq!(fault(b"*x\r\n"), "invalid multibulk length");
    assert_eq!(fault(b"*\r\n"), "invalid multibulk length");
    assert_eq!(fault(b"*99999999\r\n"), "invalid multibulk length");
    assert_eq!(fault(b"*1\r\n+PING\r\n"), "expected '$', got '+'");
    assert_eq!(
        fault(b"*1\r\n*1\r\n$4\r\nPING\r\n"),
        "expected '$', got '*'"
    );
    assert_eq!(fault(b"*1\r\n\r\n"), "expected '$', got '\\r'");
    assert_eq!(fault(b"*1\r\n$-1\r\n"), "invalid bulk length");
    assert_eq!(fault(b"*1\r\n$4194305\r\n"), "invalid bulk length");
    assert_eq!(
        fault(b"*1\r\n$4\r\nPINGxx"),
        "expected CRLF after a bulk string"
    );
    assert_eq!(fault(b"*1111111111111111111111"), "too big count string");
    assert_eq!(fault(b"SET a \"b\r\n"), "unbalanced quotes in request");
    assert_eq!(fault(b"SET 'a'b\r\n"), "unbalanced quotes in request");
    assert_eq!(
        fault(&vec![b'x'; LINE_BYTES_MAX + 1]),
        "too big inline request"
    );
}

#[test]
fn a_request_beyond_its_bound_is_refused_before_it_arrives() {
    let start = format!(
        "*3\r\n$3000000\r\n{}\r\n$2000000\r\n",
        "x".repeat(3_000_000)
    );
    let max = REQUEST_BYTES_MAX;
    assert_eq!(
        parse_all(start.as_bytes()).1,
        Some(ProtocolError::RequestTooLarge { max })
    );
}

#[test]
fn a_large_request_in_small_pieces_is_read_once() {
    // Quadratic reading of these 2 MiB, in 64-byte pieces, would take minutes.
    let args = vec![Bytes::from(vec![b'v'; 100]); 16_000];
    let bytes = request(&args);
    assert_eq!(parse_pieces(bytes.chunks(64)), (vec![args], None));
}

#[test]
fn arguments_share_the_memory_they_arrived_in() {
    let mut buffer = BytesMut::from(&b"*1\r\n$3\r\nabc\r\n"[..]);
    let place = buffer.as_ptr() as usize;
    let args = Parser::new().next(&mut buffer).unwrap().unwrap();
    assert_eq!(args[0].as_ptr() as usize, place + 8);
}

fn any_args() -> impl Strategy<Value = Vec<Bytes>> {
    let arg = prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    prop::collection::vec(arg, 1..6)
}

/// Bytes that look like the protocol more often than chance would.
fn nearly_resp() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"\\x".to_vec()),
        (-2i64..12).prop_map(|n| n.to_string().into_bytes()),
        any_args().prop_map(|args| request(&args)),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn requests_survive_the_wire_however_it_cuts_them(
        requests in prop::collection::vec(any_args(), 1..5), piece in 1usize..20
    ) {
        let bytes: Vec<u8> = requests.iter().flat_map(|args| request(args)).collect();
        prop_assert_eq!(parse_pieces(bytes.chunks(piece)), (requests, None));
    }

    #[test]
    fn a_truncated_request_is_only_waited_for(args in any_args()) {
        let bytes = request(&args);
        for end in 0..bytes.len() {
            prop_assert_eq!(parse_all(&bytes[..end]), (vec![], None));
        }
    }

    #[test]
    fn the_cutting_of_any_bytes_changes_nothing(bytes in nearly_resp(), piece in 1usize..9) {
        prop_assert_eq!(parse_pieces(bytes.chunks(piece)), parse_all(&bytes));
    }
}
