use std::fs;
use std::path::Path;

use rcgen::{ExtendedKeyUsagePurpose, KeyPair};

use super::maker::{AGO, AHEAD, Ca, Leaf, identity, now};
use crate::io::credentials::files::open_mode;
use crate::io::credentials::{CredentialError, Credentials, TlsFiles};

fn load(files: &TlsFiles) -> Result<Credentials, CredentialError> {
    Credentials::load(files, &identity("dev", 1), now())
}

/// A good set; the case spoils it.
fn good(ca: &Ca) -> TlsFiles {
    let files = ca.store("good", &ca.issue(&Leaf::of(&identity("dev", 1))));
    let crl = ca.path("crl.pem");
    fs::write(&crl, ca.list(&[99], AHEAD)).unwrap();
    TlsFiles {
        crl: Some(crl),
        ..files
    }
}

fn spoilt(ca: &Ca, spoil: impl FnOnce(&mut Leaf)) -> TlsFiles {
    let mut leaf = Leaf::of(&identity("dev", 1));
    spoil(&mut leaf);
    TlsFiles {
        crl: Some(ca.path("crl.pem")),
        ..ca.store("spoilt", &ca.issue(&leaf))
    }
}

fn write(path: &Path, text: impl AsRef<[u8]>) {
    fs::write(path, text).unwrap();
}

#[test]
fn a_good_set_loads_and_says_what_it_is() {
    let ca = Ca::new("dev CA");
    let files = good(&ca);
    let credentials = load(&files).unwrap();
    assert_eq!(credentials.facts().identity, identity("dev", 1));
    assert_eq!(credentials.facts().issuer, "CN=dev CA");
    assert_eq!(credentials.list_due(), Some(AHEAD.unix_timestamp()));
    assert_eq!(*credentials.stamp(), files.stamp());
    assert!(!format!("{credentials:?}").contains("PRIVATE"));
}

#[test]
fn a_stamp_changes_when_a_file_is_replaced() {
    let ca = Ca::new("dev CA");
    let files = good(&ca);
    let before = files.stamp();
    assert_eq!(before, files.stamp());
    let next = ca.path("next.pem");
    fs::copy(&files.cert, &next).unwrap();
    fs::rename(&next, &files.cert).unwrap();
    assert_ne!(before, files.stamp());
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_use_is_noticed() {
    use std::os::unix::fs::PermissionsExt;
    let ca = Ca::new("dev CA");
    let key = good(&ca).key;
    for (mode, noticed) in [
        (0o600, None),
        (0o400, None),
        (0o640, Some(0o640)),
        (0o604, Some(0o604)),
    ] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(open_mode(&key), noticed);
    }
}

/// One spoilt set and what its sentence must say; `{dir}` stands for the folder.
type Case = (&'static str, fn(&Ca, &mut TlsFiles), &'static str);

const UNREADABLE: &[Case] = &[
    (
        "missing certificate",
        |ca, files| files.cert = ca.path("absent.pem"),
        "certificate file {dir}/absent.pem does not exist",
    ),
    (
        "missing list",
        |ca, files| files.crl = Some(ca.path("absent.pem")),
        "revocation list {dir}/absent.pem does not exist",
    ),
    (
        "folder for a file",
        |ca, files| files.ca = ca.dir.path().to_owned(),
        "CA file {dir} is not a regular file",
    ),
    (
        "no PEM",
        |_, files| write(&files.key, "hello\n"),
        "key file {dir}/good-key.pem holds no PEM",
    ),
    (
        "empty file",
        |_, files| write(&files.cert, ""),
        "certificate file {dir}/good.pem holds no PEM",
    ),
    (
        "too long",
        |_, files| write(&files.ca, vec![b'a'; (4 << 20) + 1]),
        "CA file {dir}/ca.pem is longer than 4194304 bytes",
    ),
    (
        "paths swapped",
        |_, files| std::mem::swap(&mut files.cert, &mut files.key),
        "holds a PEM block \"PRIVATE KEY\" where \"CERTIFICATE\" is expected",
    ),
    (
        "certificate for a key",
        |_, files| files.key = files.cert.clone(),
        "holds a PEM block \"CERTIFICATE\" where \"PRIVATE KEY\" is expected",
    ),
    (
        "cut PEM",
        |_, files| {
            let whole = fs::read(&files.cert).unwrap();
            write(&files.cert, &whole[..whole.len() / 2]);
        },
        "certificate file {dir}/good.pem holds broken PEM",
    ),
    (
        "PEM of nothing",
        |_, files| {
            write(
                &files.ca,
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            );
        },
        "block 1 of the CA file {dir}/ca.pem is not a well-formed CERTIFICATE",
    ),
    (
        "list of nothing",
        |ca, _| {
            write(
                &ca.path("crl.pem"),
                "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
            );
        },
        "block 1 of the revocation list {dir}/crl.pem is not a well-formed X509 CRL",
    ),
    (
        "encrypted key",
        |_, files| {
            let pem = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n\
                       -----END ENCRYPTED PRIVATE KEY-----\n";
            write(&files.key, pem);
        },
        "key file {dir}/good-key.pem is encrypted",
    ),
    (
        "key encrypted in the old way",
        |_, files| {
            let pem = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                       DEK-Info: AES-256-CBC,00\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
            write(&files.key, pem);
        },
        "key file {dir}/good-key.pem is encrypted",
    ),
    (
        "two keys",
        |_, files| {
            let twice = fs::read_to_string(&files.key).unwrap().repeat(2);
            write(&files.key, twice);
        },
        "key file {dir}/good-key.pem holds 2 private keys",
    ),
    (
        "key of nothing",
        |_, files| {
            write(
                &files.key,
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            );
        },
        "key file {dir}/good-key.pem holds a key of an unsupported kind",
    ),
];

const UNFIT: &[Case] = &[
    (
        "another pair's key",
        |_, files| write(&files.key, KeyPair::generate().unwrap().serialize_pem()),
        "key file {dir}/good-key.pem does not belong to the first certificate in {dir}/good.pem",
    ),
    (
        "no URI",
        |ca, files| *files = spoilt(ca, |leaf| leaf.uris.clear()),
        "names no node: it has no URI name; issue it with the one URI name",
    ),
    (
        "two URIs",
        |ca, files| *files = spoilt(ca, |leaf| leaf.uris.push("mraft://dev/node/2".to_owned())),
        "names no node: it has 2 URI names",
    ),
    (
        "another node",
        |ca, files| *files = spoilt(ca, |leaf| leaf.uris = vec!["mraft://dev/node/2".to_owned()]),
        "is for mraft://dev/node/2, but this node is mraft://dev/node/1",
    ),
    (
        "another cluster",
        |ca, files| {
            *files = spoilt(ca, |leaf| {
                leaf.uris = vec!["mraft://prod/node/1".to_owned()]
            })
        },
        "is for mraft://prod/node/1, but this node is mraft://dev/node/1",
    ),
    (
        "expired",
        |ca, files| *files = spoilt(ca, |leaf| leaf.not_after = AGO),
        "expired at 2021-01-01T00:00:00Z; renew it",
    ),
    (
        "early",
        |ca, files| *files = spoilt(ca, |leaf| leaf.not_before = AHEAD),
        "is not valid before 2090-01-01T00:00:00Z; check this machine's clock",
    ),
    (
        "server only",
        |ca, files| {
            *files = spoilt(ca, |leaf| {
                leaf.usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            });
        },
        "extended key usage excludes",
    ),
    (
        "another CA",
        |ca, files| {
            let other = Ca::new("other CA");
            write(&files.ca, &other.pem);
            write(&ca.path("crl.pem"), other.list(&[], AHEAD));
        },
        "was issued by CN=dev CA, which is not in the CA file {dir}/ca.pem",
    ),
    (
        "leaf for a CA",
        |_, files| files.ca = files.cert.clone(),
        "CA file {dir}/good.pem holds the certificate of CN=mraft://dev/node/1, which is no CA",
    ),
    (
        "revoked",
        |ca, _| write(&ca.path("crl.pem"), ca.list(&[7], AHEAD)),
        "serial 07, is revoked by the list {dir}/crl.pem",
    ),
    (
        "expired list",
        |ca, _| write(&ca.path("crl.pem"), ca.list(&[], AGO)),
        "revocation list {dir}/crl.pem expired at 2021-01-01T00:00:00Z",
    ),
    (
        "another CA's list",
        |ca, _| write(&ca.path("crl.pem"), Ca::new("other CA").list(&[], AHEAD)),
        "revocation list {dir}/crl.pem is from CN=other CA and not signed by any CA",
    ),
    (
        "list under a borrowed name",
        |ca, _| write(&ca.path("crl.pem"), Ca::new("dev CA").list(&[], AHEAD)),
        "is from CN=dev CA and not signed by any CA",
    ),
    (
        "one list for two CAs",
        |ca, files| write(&files.ca, format!("{}{}", ca.pem, Ca::new("next CA").pem)),
        "has none from CN=next CA, which {dir}/ca.pem trusts",
    ),
];

#[test]
fn every_bad_file_is_named_with_its_fault() {
    for (case, spoil, sentence) in UNREADABLE.iter().chain(UNFIT) {
        let ca = Ca::new("dev CA");
        let mut files = good(&ca);
        load(&files).unwrap();
        spoil(&ca, &mut files);
        let said = load(&files).unwrap_err().to_string();
        let sentence = sentence.replace("{dir}", &ca.dir.path().display().to_string());
        assert!(said.contains(&sentence), "{case}: {said}");
        assert!(!said.contains('\n'), "{case}: {said}");
    }
}

#[test]
fn a_set_past_its_time_loads_only_when_told_to_and_its_other_faults_still_count() {
    let ca = Ca::new("dev CA");
    good(&ca);
    let files = spoilt(&ca, |leaf| leaf.not_after = AGO);
    let whose = identity("dev", 1);
    assert!(matches!(load(&files), Err(CredentialError::Expired { .. })));
    let expired = Credentials::load_at_any_age(&files, &whose, now()).unwrap();
    assert_eq!(expired.facts().not_after, AGO.unix_timestamp());
    let other = Ca::new("other CA");
    write(&files.ca, &other.pem);
    write(&ca.path("crl.pem"), other.list(&[], AHEAD));
    let fault = Credentials::load_at_any_age(&files, &whose, now()).unwrap_err();
    assert!(
        matches!(fault, CredentialError::UntrustedLeaf { .. }),
        "{fault}"
    );
}

#[test]
fn two_cas_with_a_list_each_are_trusted_together() {
    let (ca, next) = (Ca::new("dev CA"), Ca::new("next CA"));
    let files = good(&ca);
    write(&files.ca, format!("{}{}", ca.pem, next.pem));
    let lists = format!("{}{}", ca.list(&[], AHEAD), next.list(&[], AGO));
    write(&ca.path("crl.pem"), lists);
    let credentials = load(&files).unwrap();
    assert_eq!(credentials.list_due(), Some(AGO.unix_timestamp()));
}

#[test]
fn a_chain_through_an_intermediate_is_followed() {
    let ca = Ca::new("dev CA");
    let (between, pem) = ca.intermediate("site CA");
    let files = between.store("leaf", &between.issue(&Leaf::of(&identity("dev", 1))));
    write(&files.ca, &ca.pem);
    let leaf = fs::read_to_string(&files.cert).unwrap();
    assert!(matches!(
        load(&files),
        Err(CredentialError::UntrustedLeaf { .. })
    ));
    write(&files.cert, format!("{leaf}{pem}"));
    assert_eq!(load(&files).unwrap().facts().issuer, "CN=site CA");
    let crl = between.path("crl.pem");
    write(
        &crl,
        format!("{}{}", ca.list(&[], AHEAD), between.list(&[], AHEAD)),
    );
    let files = TlsFiles {
        crl: Some(crl.clone()),
        ..files
    };
    load(&files).unwrap();
    write(&crl, ca.list(&[], AHEAD));
    let said = load(&files).unwrap_err().to_string();
    assert!(said.contains("has no list of its issuer"), "{said}");
}
