//! Claims against certificates and records: every refusal, with both sides' values.

use super::*;
use crate::id::{ClusterName, Lane};
use crate::testing::pair::{claims, cluster, identity, peer};

fn authority() -> Authority {
    Authority::new(identity(2), [peer(1), peer(3)])
}

fn theirs() -> Claims {
    claims(Lane::Control, 1, 2)
}

fn record() -> NodeRecord {
    NodeRecord {
        incarnation: theirs().incarnation,
        boot: Boot::new(5),
        life: Some(theirs().life),
        sync_number: 70,
        pinned: true,
    }
}

fn pinned() -> Authority {
    let mut authority = authority();
    authority.pin(peer(1), record());
    authority
}

fn with(change: impl FnOnce(&mut Claims)) -> Claims {
    let mut claims = Claims {
        boot: Boot::new(5),
        sync_number: 70,
        ..theirs()
    };
    change(&mut claims);
    claims
}

fn refusal(claims: &Claims) -> PeerIncompatible {
    pinned().check_claims(&identity(1), claims).unwrap_err()
}

#[test]
fn a_certificate_of_another_cluster_or_of_no_peer_may_not_speak() {
    let foreign = NodeIdentity {
        cluster: cluster("prod"),
        node: peer(1),
    };
    let refused = authority().check_certified(&foreign).unwrap_err();
    let (expected, got) = ("dev".to_owned(), "prod".to_owned());
    assert_eq!(refused, PeerIncompatible::WrongCluster { expected, got });
    let refused = authority().check_certified(&identity(9)).unwrap_err();
    let (here, got) = (peer(2), peer(9));
    assert_eq!(refused, PeerIncompatible::UnknownPeer { here, got });
    assert_eq!(authority().check_certified(&identity(3)), Ok(()));
}

#[test]
fn a_hello_may_claim_only_what_its_certificate_says() {
    let claimed: ClusterName = cluster("prod");
    let certified = cluster("dev");
    let refused = refusal(&with(|claims| claims.cluster = claimed.clone()));
    assert_eq!(
        refused,
        PeerIncompatible::ClaimedCluster { certified, claimed }
    );
    let refused = refusal(&with(|claims| claims.from = peer(3)));
    let (certified, claimed) = (peer(1), peer(3));
    assert_eq!(
        refused,
        PeerIncompatible::ClaimedNode { certified, claimed }
    );
}

#[test]
fn a_pinned_node_must_be_the_one_on_record_and_not_older() {
    let authority = pinned();
    for fine in [
        with(|_| {}),
        with(|claims| claims.boot = Boot::new(6)),
        with(|claims| claims.sync_number = 71),
    ] {
        assert_eq!(authority.check_claims(&identity(1), &fine), Ok(()));
    }
    let got = Incarnation::new([9; 16]);
    let known = theirs().incarnation;
    // A wiped node starts from boot 1: its incarnation is what is wrong with it, not its boot.
    let wiped = with(|claims| (claims.incarnation, claims.boot) = (got, Boot::new(1)));
    assert_eq!(
        refusal(&wiped),
        PeerIncompatible::UnknownIncarnation { known, got }
    );
    let (known, got) = (Boot::new(5), Boot::new(4));
    let stale = refusal(&with(|claims| claims.boot = got));
    assert_eq!(stale, PeerIncompatible::StaleBoot { known, got });
    // Restored from a backup: a newer boot with an older log.
    let back = refusal(&with(|claims| {
        (claims.boot, claims.sync_number) = (Boot::new(6), 69);
    }));
    let (known, got) = (70, 69);
    assert_eq!(back, PeerIncompatible::RolledBack { known, got });
}

#[test]
fn what_was_accepted_is_remembered_and_what_was_refused_is_not() {
    let mut authority = pinned();
    let newer = with(|claims| (claims.boot, claims.sync_number) = (Boot::new(7), 90));
    assert_eq!(hello(&mut authority, &newer), Ok(()));
    let expected = NodeRecord {
        boot: Boot::new(7),
        sync_number: 90,
        ..record()
    };
    assert_eq!(authority.record(peer(1)), Some(expected));
    assert!(hello(&mut authority, &with(|_| {})).is_err());
    let posing = with(|claims| (claims.from, claims.boot) = (peer(3), Boot::new(9)));
    assert!(hello(&mut authority, &posing).is_err());
    assert_eq!(authority.record(peer(1)), Some(expected));
    assert_eq!(authority.record(peer(3)), None);
}

#[test]
fn a_node_that_was_never_pinned_is_held_to_its_newest_boot_and_may_change_its_directory() {
    let mut authority = authority();
    assert_eq!(hello(&mut authority, &with(|_| {})), Ok(()));
    assert!(!authority.record(peer(1)).unwrap().pinned);
    let (known, got) = (Boot::new(5), Boot::new(4));
    let stale = with(|claims| claims.boot = got);
    let refused = hello(&mut authority, &stale).unwrap_err();
    assert_eq!(refused, PeerIncompatible::StaleBoot { known, got });
    let incarnation = Incarnation::new([9; 16]);
    let other = with(|claims| (claims.incarnation, claims.boot) = (incarnation, Boot::new(1)));
    assert_eq!(hello(&mut authority, &other), Ok(()));
    assert_eq!(authority.record(peer(1)).unwrap().incarnation, incarnation);
}

#[test]
fn a_newer_boot_is_held_to_all_that_was_seen_of_the_log_and_hellos_of_one_life_to_nothing_of_it() {
    let mut authority = pinned();
    let incarnation = theirs().incarnation;
    assert!(authority.on_synced(peer(1), incarnation, 80));
    assert!(!authority.on_synced(peer(1), incarnation, 75), "no news");
    let other = Incarnation::new([9; 16]);
    assert!(
        !authority.on_synced(peer(1), other, 99),
        "another directory's"
    );
    assert!(!authority.on_synced(peer(3), incarnation, 99), "never met");
    // Hellos of this life, in whichever order they come.
    for sync_number in [72, 70, 69] {
        let hello_of_life = with(|claims| claims.sync_number = sync_number);
        assert_eq!(hello(&mut authority, &hello_of_life), Ok(()));
    }
    assert_eq!(authority.record(peer(1)).unwrap().sync_number, 80);
    let restored = with(|claims| (claims.boot, claims.sync_number) = (Boot::new(6), 79));
    let (known, got) = (80, 79);
    let back = hello(&mut authority, &restored).unwrap_err();
    assert_eq!(back, PeerIncompatible::RolledBack { known, got });
    let restarted = with(|claims| (claims.boot, claims.sync_number) = (Boot::new(6), 80));
    assert_eq!(hello(&mut authority, &restarted), Ok(()));
}

/// A directory that was copied while its node was stopped, and put back after one more life, used to
/// pass: it counts up to the boot of that life.
#[test]
fn a_second_life_of_a_boot_is_refused_with_both_whatever_its_log() {
    let mut authority = authority().remembering(Contact::FirstCounts, &BTreeMap::new());
    assert_eq!(hello(&mut authority, &with(|_| {})), Ok(()));
    let (boot, known, got) = (Boot::new(5), theirs().life, LifeId::from_random(99));
    let copy = with(|claims| (claims.life, claims.sync_number) = (got, 500));
    let mut next = self::authority().remembering(Contact::FirstCounts, &authority.records());
    for authority in [&mut authority, &mut next] {
        let refused = hello(authority, &copy).unwrap_err();
        assert_eq!(refused, PeerIncompatible::OtherLife { boot, known, got });
        assert_eq!(authority.record(peer(1)), Some(record()));
    }
}

#[test]
fn a_record_without_a_life_takes_that_of_the_next_hello() {
    let mut authority = authority();
    let life = None;
    authority.pin(peer(1), NodeRecord { life, ..record() });
    assert_eq!(hello(&mut authority, &with(|_| {})), Ok(()));
    assert_eq!(authority.record(peer(1)), Some(record()));
    let other = with(|claims| claims.life = LifeId::from_random(99));
    assert!(hello(&mut authority, &other).is_err());
}

#[test]
fn where_the_first_contact_counts_another_directory_is_refused_also_in_the_next_life() {
    let first = authority().remembering(Contact::FirstCounts, &BTreeMap::new());
    let mut first = first;
    assert_eq!(hello(&mut first, &with(|_| {})), Ok(()));
    let kept = first.records();
    assert_eq!(kept, [(peer(1), record())].into());
    let mut next = authority().remembering(Contact::FirstCounts, &kept);
    let got = Incarnation::new([9; 16]);
    let wiped = with(|claims| (claims.incarnation, claims.boot) = (got, Boot::new(1)));
    let known = theirs().incarnation;
    let refused = hello(&mut next, &wiped).unwrap_err();
    assert_eq!(refused, PeerIncompatible::UnknownIncarnation { known, got });
    assert_eq!(hello(&mut next, &with(|_| {})), Ok(()));
}

/// A hello of node 1 that is agreed on in everything else.
fn hello(authority: &mut Authority, claims: &Claims) -> Result<(), PeerIncompatible> {
    authority.judge(&identity(1), claims)?;
    authority.remember(claims);
    Ok(())
}
