use super::*;

fn dialog() -> Dialog {
    Dialog::new(KeySpace::new(100).unwrap(), SessionId::new(7))
}

fn say(dialog: &mut Dialog, line: &str) -> Step {
    let args: Vec<_> = line
        .split(' ')
        .map(|w| Bytes::copy_from_slice(w.as_bytes()))
        .collect();
    dialog.on_request(&args)
}

fn answer(dialog: &mut Dialog, line: &str) -> String {
    match say(dialog, line) {
        Step::Answer(reply) | Step::Close(reply) => {
            let mut out = bytes::BytesMut::new();
            reply.encode(&mut out);
            String::from_utf8_lossy(&out)
                .replace("\r\n", " ")
                .trim_end()
                .to_owned()
        }
        step @ (Step::Hand(_) | Step::Describe) => format!("{step:?}"),
    }
}

#[test]
fn the_session_answers_what_needs_no_store() {
    let table = [
        ("PING", "+PONG"),
        ("ping hi", "$2 hi"),
        ("ECHO hi", "$2 hi"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command"),
        ("SELECT 0", "+OK"),
        ("SELECT 1", "-ERR DB index is out of range"),
        ("SELECT x", "-ERR value is not an integer or out of range"),
        ("CLIENT ID", ":7"),
        ("CLIENT GETNAME", "$-1"),
        ("CLIENT SETNAME me", "+OK"),
        ("CLIENT GETNAME", "$2 me"),
        ("CLIENT SETINFO LIB-NAME x", "+OK"),
        (
            "CLIENT KILL",
            "-ERR unknown subcommand 'KILL'. Try CLIENT HELP.",
        ),
        ("CONFIG GET save", "*0"),
        (
            "CONFIG SET save x",
            "-ERR unknown subcommand 'SET'. Try CONFIG HELP.",
        ),
        ("COMMAND DOCS", "*0"),
        ("COMMAND COUNT", ":30"),
        (
            "COMMAND INFO get none",
            "*2 *6 $3 get :2 *1 +readonly :1 :1 :1 $-1",
        ),
        ("HELLO 3", "-NOPROTO unsupported protocol version"),
        (
            "HELLO 2 AUTH a b",
            "-ERR option 'AUTH' of 'hello' is not supported",
        ),
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        (
            "MULTI x",
            "-ERR wrong number of arguments for 'multi' command",
        ),
    ];
    let mut dialog = dialog();
    for (line, expected) in table {
        assert_eq!(answer(&mut dialog, line), expected, "{line}");
    }
    assert!(answer(&mut dialog, "HELLO 2 SETNAME you").starts_with("*14 $6 server"));
    assert_eq!(answer(&mut dialog, "CLIENT GETNAME"), "$3 you");
    assert_eq!(say(&mut dialog, "QUIT"), Step::Close(Reply::OK));
    assert_eq!(say(&mut dialog, "INFO"), Step::Describe);
}

#[test]
fn a_command_is_handed_on_with_its_group() {
    let mut dialog = dialog();
    let key = Bytes::from_static(b"{x}1");
    let group = KeySpace::new(100).unwrap().group_of(b"x");
    let command = Command::Op(Op::Get { key });
    let step = Step::Hand(Request::Command { group, command });
    assert_eq!(say(&mut dialog, "GET {x}1"), step);
    assert_eq!(answer(&mut dialog, "MG.GROUP {x}2"), format!(":{group}"));
    assert_eq!(say(&mut dialog, "DBSIZE"), Step::Hand(Request::DbSize));
    assert!(answer(&mut dialog, "MGET a b").starts_with("-CROSSGROUP"));
}

#[test]
fn a_transaction_is_handed_on_as_one_unit() {
    let mut dialog = dialog();
    assert_eq!(answer(&mut dialog, "MULTI"), "+OK");
    assert_eq!(answer(&mut dialog, "INCR a"), "+QUEUED");
    assert_eq!(answer(&mut dialog, "GET {a}b"), "+QUEUED");
    assert_eq!(
        answer(&mut dialog, "MULTI"),
        "-ERR MULTI calls can not be nested"
    );
    let Step::Hand(Request::Transaction { ops, .. }) = say(&mut dialog, "EXEC") else {
        panic!()
    };
    assert_eq!(ops.len(), 2);
    assert_eq!(answer(&mut dialog, "EXEC"), "-ERR EXEC without MULTI");
}

#[test]
fn an_empty_transaction_has_an_empty_result() {
    let mut dialog = dialog();
    say(&mut dialog, "MULTI");
    assert_eq!(answer(&mut dialog, "EXEC"), "*0");
}

#[test]
fn a_discarded_transaction_is_forgotten() {
    let mut dialog = dialog();
    say(&mut dialog, "MULTI");
    say(&mut dialog, "INCR a");
    assert_eq!(answer(&mut dialog, "DISCARD"), "+OK");
    assert!(matches!(say(&mut dialog, "INCR a"), Step::Hand(_)));
}

#[test]
fn any_refusal_while_queueing_spoils_the_transaction() {
    let faults = [
        ("NOSUCH", "-ERR unknown command"),
        ("GET", "-ERR wrong number"),
        ("GET other", "-CROSSGROUP"),
        ("DBSIZE", "-ERR 'dbsize' is not allowed in a transaction"),
        ("PING", "-ERR 'ping' is not allowed in a transaction"),
        (
            "MG.DO 5-x INCR a",
            "-ERR 'mg.do' is not allowed in a transaction",
        ),
        (
            "EXEC now",
            "-ERR wrong number of arguments for 'exec' command",
        ),
    ];
    for (fault, start) in faults {
        let mut dialog = dialog();
        say(&mut dialog, "MULTI");
        say(&mut dialog, "INCR a");
        let text = answer(&mut dialog, fault);
        assert!(text.starts_with(start), "{fault}: {text}");
        assert_eq!(answer(&mut dialog, "INCR a"), "+QUEUED");
        let abort = "-EXECABORT Transaction discarded because of previous errors.";
        assert_eq!(answer(&mut dialog, "EXEC"), abort, "{fault}");
        assert!(
            matches!(say(&mut dialog, "INCR a"), Step::Hand(_)),
            "{fault}"
        );
    }
}

#[test]
fn a_transaction_is_bounded_in_commands_and_bytes() {
    let mut dialog = dialog();
    say(&mut dialog, "MULTI");
    for _ in 0..TRANSACTION_OPS_MAX {
        assert_eq!(answer(&mut dialog, "INCR a"), "+QUEUED");
    }
    assert_eq!(
        answer(&mut dialog, "INCR a"),
        "-ERR transaction of more than 1024 commands"
    );
    assert!(answer(&mut dialog, "EXEC").starts_with("-EXECABORT"));
    say(&mut dialog, "MULTI");
    let value = "v".repeat(1 << 20);
    let answers: Vec<_> = (0..4)
        .map(|_| answer(&mut dialog, &format!("SET a {value}")))
        .collect();
    assert_eq!(answers[..3], ["+QUEUED"; 3]);
    assert!(answers[3].starts_with("-ERR string of"), "{}", answers[3]);
}
