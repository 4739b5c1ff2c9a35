//! Command lines as a user types them, run in this process: what is printed, what is written, and
//! how they end. The files are held against `transport`'s own loader, which shares no code with
//! the module that makes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;
use tempfile::TempDir;
use transport::io::credentials::{CredentialError, Credentials, TlsFiles};

use super::*;

pub(super) struct Ended {
    pub(super) exit: Exit,
    pub(super) out: String,
    pub(super) err: String,
}

pub(super) fn multigroup(arguments: &[&str]) -> Ended {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let words = ["multigroup"].iter().chain(arguments);
    let exit = run(words.map(OsString::from), &mut out, &mut err);
    Ended {
        exit,
        out: String::from_utf8(out).unwrap(),
        err: String::from_utf8(err).unwrap(),
    }
}

/// A failure must be one line on stderr, with nothing on stdout.
pub(super) fn failure(arguments: &[&str], exit: Exit) -> String {
    let ended = multigroup(arguments);
    assert_eq!(ended.exit, exit, "{arguments:?}: {}", ended.err);
    assert_eq!(ended.out, "", "{arguments:?}");
    assert_eq!(ended.err.lines().count(), 1, "{arguments:?}: {}", ended.err);
    assert!(!ended.err.ends_with(".\n"), "{}", ended.err);
    ended.err
}

pub(super) fn done(arguments: &[&str]) -> String {
    let ended = multigroup(arguments);
    assert_eq!(ended.exit, Exit::Done, "{arguments:?}: {}", ended.err);
    assert_eq!(ended.err, "", "{arguments:?}");
    ended.out
}

struct Cluster {
    _holder: TempDir,
    dir: String,
}

impl Cluster {
    fn new() -> Self {
        let holder = TempDir::new().unwrap();
        let dir = holder.path().join("dev").display().to_string();
        done(&["certs", "init", "--dir", &dir, "--cluster", "dev"]);
        Self {
            _holder: holder,
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.dir).join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn node(&self, more: &[&str]) -> String {
        let command = ["certs", "node", "--dir", &self.dir, "--node", "1"];
        done(&[&command, more].concat())
    }

    fn load(&self) -> Result<Credentials, CredentialError> {
        let files = TlsFiles {
            ca: self.path("ca/ca.pem"),
            cert: self.path("node-1/cert.pem"),
            key: self.path("node-1/key.pem"),
            crl: Some(self.path("ca/crl.pem")),
        };
        let expected = "mraft://dev/node/1".parse().unwrap();
        Credentials::load(&files, &expected, SystemTime::from(wall_clock()))
    }

    fn show(&self, name: &str) -> (String, Value) {
        let file = self.path(name).display().to_string();
        let text = done(&["certs", "show", &file]);
        let json = done(&["certs", "show", &file, "--json", "-"]);
        (text, serde_json::from_str(&json).unwrap())
    }
}

#[test]
fn the_arguments_are_well_formed_and_every_command_has_an_example() {
    fn check(command: &clap::Command) {
        let name = command.get_name();
        if name == "help" {
            return;
        }
        assert!(command.get_about().is_some(), "{name} says what it does");
        let after = command.get_after_help().map(ToString::to_string);
        assert!(
            after.is_some_and(|text| text.contains("Example:\n  multigroup")),
            "{name}"
        );
        command.get_subcommands().for_each(check);
    }
    let command = Arguments::command();
    command.clone().debug_assert();
    check(&command);
}

#[test]
fn help_goes_to_stdout_and_ends_well() {
    for arguments in [
        &["--help"][..],
        &["certs", "--help"],
        &["certs", "node", "--help"],
    ] {
        let out = done(arguments);
        assert!(
            out.contains("Usage: multigroup") && out.contains("Example:"),
            "{out}"
        );
    }
}

#[test]
fn bad_usage_is_one_sentence_that_says_where_the_help_is() {
    let cases: [(&[&str], &str); 10] = [
        (&[], "error: no command was given; see `multigroup --help`"),
        (
            &["cert"],
            "unrecognized subcommand 'cert', did you mean 'certs'?; see `multigroup",
        ),
        (
            &["certs"],
            "no command was given; see `multigroup certs --help`",
        ),
        (
            &["certs", "init", "--dir", "x"],
            "--cluster <NAME>; see `multigroup certs init --help`",
        ),
        (
            &["certs", "init", "--dir", "x", "--cluster", "my cluster"],
            "is not a cluster name",
        ),
        (
            &["certs", "node", "--dir", "x", "--node", "0"],
            "\"0\" is not a node number",
        ),
        (
            &["certs", "node", "--dir", "x", "--node", "1", "--san", "a b"],
            "\"a b\" is neither a host name nor an IP address",
        ),
        (
            &[
                "certs", "node", "--dir", "x", "--node", "1", "--valid", "1y",
            ],
            "it is a number and one of d, h, m, s, for example 365d; see `multigroup certs node -",
        ),
        (
            &["certs", "show"],
            "<FILE>; see `multigroup certs show --help`",
        ),
        (
            &["--log-format", "xml", "--version"],
            "[possible values: text, json]",
        ),
    ];
    for (arguments, sentence) in cases {
        let err = failure(arguments, Exit::Usage);
        assert!(err.contains(sentence), "{arguments:?}: {err}");
    }
}

#[test]
fn times_are_a_number_and_a_unit_within_bounds() {
    let parse = |text| certs::parse_validity(text).map(|validity| validity.as_secs());
    assert_eq!(parse("60s"), Ok(60));
    assert_eq!(parse("30m"), Ok(1800));
    assert_eq!(parse("12h"), Ok(43_200));
    assert_eq!(parse("365d"), Ok(31_536_000));
    for bad in [
        "",
        "d",
        "5",
        "-1d",
        "1.5d",
        "0s",
        "36501d",
        "18446744073709551615d",
        "5ä",
    ] {
        assert!(parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn the_version_lists_what_was_switched_on() {
    assert_eq!(
        done(&["--version"]),
        format!("multigroup {}\n", env!("CARGO_PKG_VERSION"))
    );
    let json: Value = serde_json::from_str(&done(&["--version", "--json"])).unwrap();
    assert_eq!(json["schema"], "multigroup.version/1");
    // Tests of the whole workspace are built with what the benches switch on.
    let switched_on: &[&str] = if cfg!(feature = "debug-keys") {
        &["debug-keys"]
    } else {
        &[]
    };
    assert_eq!(json["features"], Value::from(switched_on));
    assert!(json["cfgs"].as_array().unwrap().is_empty());
}

#[test]
fn made_certificates_load_as_the_node_that_they_are_for() {
    let cluster = Cluster::new();
    let out = cluster.node(&["--san", "db1.example.org", "--san", "::1"]);
    assert!(
        out.starts_with("made the certificate of mraft://dev/node/1 in "),
        "{out}"
    );
    let loaded = cluster.load().unwrap();
    assert_eq!(loaded.facts().issuer, "CN=dev CA");
    assert!(loaded.list_due().is_some());
    let (_, json) = cluster.show("node-1/cert.pem");
    assert_eq!(
        json["items"][0]["names"],
        serde_json::json!([
            "URI mraft://dev/node/1",
            "DNS localhost",
            "IP 127.0.0.1",
            "IP ::1",
            "DNS db1.example.org"
        ])
    );
}

#[cfg(unix)]
#[test]
fn keys_are_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let cluster = Cluster::new();
    cluster.node(&[]);
    for name in ["ca/ca-key.pem", "node-1/key.pem"] {
        let mode = fs::metadata(cluster.path(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_ca_is_never_overwritten() {
    let cluster = Cluster::new();
    let before = cluster.text("ca/ca-key.pem");
    let err = failure(
        &["certs", "init", "--dir", &cluster.dir, "--cluster", "dev"],
        Exit::Failed,
    );
    assert!(
        err.contains("already exists, and a CA is never overwritten"),
        "{err}"
    );
    assert_eq!(cluster.text("ca/ca-key.pem"), before);
    let names = fs::read_dir(&cluster.dir).unwrap();
    assert_eq!(names.count(), 1, "nothing is left lying about");
}

#[test]
fn a_renewal_replaces_the_pair_and_says_so() {
    let cluster = Cluster::new();
    cluster.node(&[]);
    let (cert, key) = (
        cluster.text("node-1/cert.pem"),
        cluster.text("node-1/key.pem"),
    );
    let out = cluster.node(&["--valid", "60s"]);
    assert!(
        out.starts_with("renewed the certificate of mraft://dev/node/1 in "),
        "{out}"
    );
    assert!(out.contains("in place of the old pair"), "{out}");
    assert_ne!(cluster.text("node-1/cert.pem"), cert);
    assert_ne!(cluster.text("node-1/key.pem"), key);
    cluster.load().unwrap();
    let names = fs::read_dir(cluster.path("node-1")).unwrap();
    assert_eq!(names.count(), 2, "nothing is left lying about");
}

#[test]
fn a_list_that_would_lapse_before_the_leaf_is_extended_with_its_entries() {
    let cluster = Cluster::new();
    let list = cluster.path("ca/crl.pem");
    let authority = crate::certificates::Authority::from_pem(
        &cluster.text("ca/ca.pem"),
        &cluster.text("ca/ca-key.pem"),
    )
    .unwrap();
    let revoking = crate::certificates::RevocationList {
        number: 6,
        next_update: wall_clock() + time::Duration::days(10),
        revoked: vec![crate::certificates::Revocation {
            serial: vec![0x12, 0x34],
            since: wall_clock(),
        }],
    };
    fs::write(&list, authority.make_crl(&revoking, wall_clock()).unwrap()).unwrap();
    let before = cluster.text("ca/crl.pem");
    cluster.node(&["--valid", "9d"]);
    assert_eq!(cluster.text("ca/crl.pem"), before, "long enough as it was");
    let out = cluster.node(&["--valid", "400d"]);
    assert!(out.contains("extended the revocation list"), "{out}");
    let (text, json) = cluster.show("ca/crl.pem");
    assert_eq!(json["items"][0]["number"], "7");
    assert_eq!(
        json["items"][0]["revoked_serials"],
        serde_json::json!(["1234"])
    );
    assert_eq!(json["items"][0]["days_left"], 399);
    assert!(text.contains("399 days left"), "{text}");
    cluster.load().unwrap();
}

#[test]
fn a_leaf_that_would_outlive_the_ca_is_refused() {
    let cluster = Cluster::new();
    let err = failure(
        &[
            "certs",
            "node",
            "--dir",
            &cluster.dir,
            "--node",
            "1",
            "--valid",
            "3651d",
        ],
        Exit::Usage,
    );
    assert!(
        err.contains("give a shorter --valid or make a new CA"),
        "{err}"
    );
    assert!(!cluster.path("node-1").exists());
}

#[test]
fn faults_of_the_folder_are_named_with_their_remedy() {
    let cluster = Cluster::new();
    let node = |dir: &str| ["certs", "node", "--dir", dir, "--node", "1"].map(str::to_owned);
    let fail = |dir: &Path, exit| {
        let words = node(&dir.display().to_string());
        failure(&words.each_ref().map(String::as_str), exit)
    };
    let err = fail(&cluster.path("absent"), Exit::Usage);
    assert!(
        err.contains("make the CA first with `multigroup certs init --dir "),
        "{err}"
    );
    let file = cluster.path("ca/ca.pem").display().to_string();
    let err = failure(
        &["certs", "init", "--dir", &file, "--cluster", "dev"],
        Exit::Failed,
    );
    assert!(err.contains("is there already and is no folder"), "{err}");
    fs::write(cluster.path("ca/ca-key.pem"), cluster.text("ca/ca.pem")).unwrap();
    let err = fail(Path::new(&cluster.dir), Exit::Usage);
    assert!(
        err.contains("can't be used: CA key is not a well-formed"),
        "{err}"
    );
    fs::write(cluster.path("ca/ca-key.pem"), [0xff; 8]).unwrap();
    let err = fail(Path::new(&cluster.dir), Exit::Usage);
    assert!(err.contains("ca-key.pem holds no PEM"), "{err}");
}

#[test]
fn a_write_that_fails_leaves_the_old_pair_and_nothing_else() {
    let cluster = Cluster::new();
    cluster.node(&[]);
    let key = cluster.text("node-1/key.pem");
    // The certificate's place is taken by a folder, so that its temporary name is too.
    fs::remove_file(cluster.path("node-1/cert.pem")).unwrap();
    let name = format!("node-1/.cert.pem.{}.tmp", std::process::id());
    fs::create_dir(cluster.path(&name)).unwrap();
    let err = failure(
        &["certs", "node", "--dir", &cluster.dir, "--node", "1"],
        Exit::Failed,
    );
    assert!(
        err.contains("can't write") && err.contains("cert.pem"),
        "{err}"
    );
    assert_eq!(cluster.text("node-1/key.pem"), key);
    let names = fs::read_dir(cluster.path("node-1")).unwrap();
    assert_eq!(names.count(), 2, "the key and the folder in the way");
}

#[test]
fn a_full_disk_is_called_one() {
    let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
    let failure = Failure::of_file("write", Path::new("a/key.pem"), &full);
    assert_eq!(
        failure.to_string(),
        "can't write a/key.pem: it has no room left on its disk; free some space and try again"
    );
    assert_eq!(failure.exit(), Exit::Failed);
}

#[test]
fn shown_files_say_who_by_whom_and_how_long() {
    let cluster = Cluster::new();
    cluster.node(&["--valid", "30d"]);
    let (text, json) = cluster.show("node-1/cert.pem");
    for line in [
        "cert.pem: leaf\n",
        "subject       CN=dev node 1\n",
        "issuer        CN=dev CA\n",
        "identity      mraft://dev/node/1\n",
        "(29 days left)\n",
        "use           server, client\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let leaf = &json["items"][0];
    assert_eq!(json["schema"], "multigroup.certs_show/1");
    assert_eq!(leaf["kind"], "leaf");
    assert_eq!(leaf["days_left"], 29);
    assert_eq!(leaf["fingerprint_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(
        leaf["serial"],
        cluster.load().unwrap().facts().serial.as_str()
    );
    let (text, json) = cluster.show("ca/ca.pem");
    assert!(
        text.contains("ca.pem: CA\n") && text.contains("identity      cluster dev\n"),
        "{text}"
    );
    assert_eq!(json["items"][0]["kind"], "ca");
    let (text, json) = cluster.show("ca/crl.pem");
    assert!(text.contains("crl.pem: revocation list\n"), "{text}");
    assert!(text.contains("revoked       none\n"), "{text}");
    assert_eq!(json["items"][0]["kind"], "revocation_list");
}

#[test]
fn a_json_result_goes_to_its_file_beside_the_text() {
    let cluster = Cluster::new();
    let (ca, json) = (cluster.path("ca/ca.pem"), cluster.path("ca.json"));
    let (ca, target) = (ca.display().to_string(), json.display().to_string());
    let out = done(&["certs", "show", &ca, "--json", &target]);
    assert!(out.contains("CA\n"), "{out}");
    let written: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(written["file"], ca);
}

#[test]
fn what_is_no_certificate_is_called_what_it_is() {
    let cluster = Cluster::new();
    let file = cluster.path("file");
    let name = file.display().to_string();
    let cut = cluster.text("ca/ca.pem");
    let cases: [(&[u8], &str); 5] = [
        (b"", "holds no PEM"),
        (&[0xff; 100], "holds no PEM"),
        (&cut.as_bytes()[..cut.len() / 2], "block 1 of"),
        (
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "is not a well-formed \"CERTIFICATE\"",
        ),
        (
            b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
            "is not a well-formed \"X509 CRL\"",
        ),
    ];
    for (bytes, sentence) in cases {
        fs::write(&file, bytes).unwrap();
        let err = failure(&["certs", "show", &name], Exit::Usage);
        assert!(err.contains(sentence) && err.contains(&name), "{err}");
    }
    let key = cluster.path("ca/ca-key.pem").display().to_string();
    let err = failure(&["certs", "show", &key], Exit::Usage);
    assert!(
        err.contains("holds a PRIVATE KEY, which is not shown"),
        "{err}"
    );
    let err = failure(&["certs", "show", "absent.pem"], Exit::Usage);
    assert!(err.contains("absent.pem: it does not exist"), "{err}");
    let err = failure(&["certs", "show", &cluster.dir], Exit::Usage);
    assert!(err.contains("is a folder, not a file"), "{err}");
}

#[test]
fn a_reader_that_hangs_up_ends_the_command_quietly() {
    struct HungUp;
    impl Write for HungUp {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut err = Vec::new();
    let words = ["multigroup", "--version"].map(OsString::from);
    assert_eq!(run(words, &mut HungUp, &mut err), Exit::Done);
    assert_eq!(err, b"");
}

#[test]
fn a_revoked_certificate_is_refused_by_the_list_and_a_new_one_is_not() {
    let cluster = Cluster::new();
    cluster.node(&[]);
    let serial = cluster.load().unwrap().facts().serial.clone();
    let revoke = ["certs", "revoke", "--dir", &cluster.dir];
    let said = done(&[&revoke[..], &["--node", "1"]].concat());
    assert!(said.contains("revoked the certificate of node 1"), "{said}");
    assert!(said.contains(&serial), "{said}");
    assert!(matches!(
        cluster.load(),
        Err(CredentialError::Revoked { .. })
    ));
    let again = done(&[&revoke[..], &["--serial", &serial]].concat());
    assert!(again.contains("is revoked since"), "{again}");
    cluster.node(&[]);
    assert!(cluster.load().is_ok());
    // A second one stands beside it, known by its number alone.
    done(&[&revoke[..], &["--serial", "0a:0b"]].concat());
    let (_, list) = cluster.show("ca/crl.pem");
    let revoked = serde_json::json!([serial, "0a0b"]);
    assert_eq!(list["items"][0]["revoked_serials"], revoked);
}

#[test]
fn what_cannot_be_revoked_is_named() {
    let cluster = Cluster::new();
    let revoke = ["certs", "revoke", "--dir", &cluster.dir];
    let absent = failure(&[&revoke[..], &["--node", "4"]].concat(), Exit::Usage);
    assert!(
        absent.contains("node-4/cert.pem does not exist"),
        "{absent}"
    );
    // While a CA is replaced its list stands beside another's.
    let list = cluster.text("ca/crl.pem");
    fs::write(cluster.path("ca/crl.pem"), list.repeat(2)).unwrap();
    let many = failure(&[&revoke[..], &["--serial", "0a"]].concat(), Exit::Usage);
    assert!(many.contains("lists of several CAs"), "{many}");
    assert_eq!(multigroup(&revoke).exit, Exit::Usage);
}
