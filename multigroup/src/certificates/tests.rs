use time::Duration;
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2030-06-01 12:00 UTC);

fn year() -> Validity {
    Validity {
        not_before: NOW,
        not_after: NOW + Duration::days(365),
    }
}

fn authority() -> (Authority, PemPair) {
    Authority::make(&"dev".parse().unwrap(), year()).unwrap()
}

fn node(number: u32) -> PeerId {
    PeerId::new(number).unwrap()
}

#[test]
fn a_ca_taken_up_from_its_files_is_the_one_that_was_made() {
    let (made, pair) = authority();
    let again = Authority::from_pem(&pair.certificate, &pair.key).unwrap();
    assert_eq!(again.cluster(), made.cluster());
    assert_eq!(again.not_after(), made.not_after());
    assert_eq!(again.certificate(), made.certificate());
    again.issue_node(node(1), &[], year()).unwrap();
}

#[test]
fn files_that_are_no_ca_of_a_cluster_are_refused() {
    let (made, pair) = authority();
    let (_, other) = authority();
    let leaf = made.issue_node(node(1), &[], year()).unwrap();
    let fault = |certificate: &str, key: &str| {
        Authority::from_pem(certificate, key)
            .map(|_| ())
            .unwrap_err()
    };
    assert_eq!(
        fault(&pair.certificate, &other.key),
        CertificateError::KeyMismatch
    );
    assert_eq!(fault("", &pair.key), CertificateError::MalformedCa);
    assert_eq!(
        fault(&pair.certificate, "hello"),
        CertificateError::MalformedKey
    );
    assert!(matches!(
        fault(&leaf.certificate, &leaf.key),
        CertificateError::NotACa { .. }
    ));
    let mut params = params_of("a CA of something else", year());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let foreign = params.self_signed(&key).unwrap().pem();
    let fault = fault(&foreign, &key.serialize_pem());
    assert!(matches!(fault, CertificateError::NoCluster { .. }));
}

#[test]
fn a_leaf_never_outlives_its_ca_nor_ends_before_it_begins() {
    let (ca, _) = authority();
    let long = Validity {
        not_after: NOW + Duration::days(366),
        ..year()
    };
    let fault = ca.issue_node(node(1), &[], long).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "CA of the cluster is good until 2031-06-01T12:00:00Z, \
         but the leaf would be until 2031-06-02T12:00:00Z"
    );
    let backwards = Validity {
        not_after: NOW,
        ..year()
    };
    let fault = ca.issue_node(node(1), &[], backwards).unwrap_err();
    assert!(matches!(fault, CertificateError::EmptyValidity { .. }));
}

#[test]
fn each_renewal_has_a_key_and_a_serial_of_its_own() {
    let (ca, _) = authority();
    let one = ca.issue_node(node(1), &[], year()).unwrap();
    let two = ca.issue_node(node(1), &[], year()).unwrap();
    assert_ne!(one.key, two.key);
    let serial = |pair: &PemPair| {
        let pem = first_block(&pair.certificate, "CERTIFICATE").unwrap();
        pem.parse_x509().unwrap().raw_serial().to_vec()
    };
    assert_ne!(serial(&one), serial(&two));
    assert!(!format!("{one:?}").contains("PRIVATE"));
}

#[test]
fn a_list_reads_back_as_it_was_signed() {
    let (ca, _) = authority();
    let list = RevocationList {
        number: 41,
        next_update: NOW + Duration::days(30),
        revoked: vec![Revocation {
            serial: vec![0x12, 0x34],
            since: NOW,
        }],
    };
    let pem = ca.make_crl(&list, NOW).unwrap();
    assert_eq!(RevocationList::from_pem(&pem).unwrap(), list);
    assert!(RevocationList::from_pem("").is_err());
    assert!(RevocationList::from_pem(ca.certificate()).is_err());
}

#[test]
fn hosts_are_names_or_addresses_and_nothing_else() {
    for good in ["localhost", "db-1.example.org", "127.0.0.1", "::1", "a"] {
        good.parse::<HostName>().unwrap();
    }
    let long = format!("{}.org", "a".repeat(64));
    for bad in [
        "",
        "a b",
        "-a",
        "a-.org",
        "a..b",
        "256.1.1.1",
        "a_b",
        "http://a",
        "a:80",
        "ä.org",
        &long,
    ] {
        assert!(bad.parse::<HostName>().is_err(), "{bad:?}");
    }
}
