//! `certs node`: the certificate of one node, or a new one in place of the old. Both files are
//! written and synced before either takes its place, so a full disk changes nothing; between the
//! two renames a reader can find a pair that doesn't match, which nodes recognise and read again.
//!
//! The revocation list is signed anew, with the same entries, where it would lapse before the new
//! leaf: a lapsed list has every node refused.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use time::OffsetDateTime;
use transport::id::PeerId;

use super::{CLOCK_ALLOWANCE, CaFiles, LIST_VALIDITY, parse_validity};
use crate::certificates::{
    Authority, CertificateError, HostName, RevocationList, Validity, rfc3339,
};
use crate::cli::durable::{self, Readers, Staged};
use crate::cli::failure::Failure;
use crate::cli::wall_clock;

/// Make the certificate of a node, or renew it
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup certs node --dir demo --node 1 --san db1.example.org"
)]
pub(super) struct Node {
    /// The cluster's folder, in which `certs init` made the CA
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The node's number, from 1
    #[arg(long, value_name = "N")]
    node: PeerId,
    /// A further host name or IP address of the node; localhost is always among them
    #[arg(long = "san", value_name = "HOST")]
    hosts: Vec<HostName>,
    /// How long it is good: a number of d, h, m or s
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = parse_validity)]
    valid: Duration,
}

/// How long a leaf is good unless something else is asked for: what `--valid` has by default.
const LEAF_VALIDITY: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The names by which every node can be reached from its own machine.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

impl Node {
    /// With the usual names and time.
    pub(super) fn new(dir: &Path, node: PeerId) -> Self {
        Self {
            dir: dir.to_owned(),
            node,
            hosts: Vec::new(),
            valid: LEAF_VALIDITY,
        }
    }

    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let ca = CaFiles::of(&self.dir);
        let authority = read_authority(&self.dir, &ca)?;
        let now = wall_clock();
        let validity = Validity {
            not_before: now - CLOCK_ALLOWANCE,
            not_after: now + self.valid,
        };
        let refused = |error: CertificateError| {
            if let CertificateError::OutlivesCa { .. } = error {
                Failure::usage(format!("{error}; give a shorter --valid or make a new CA"))
            } else {
                Failure::work(format!(
                    "can't make a certificate for node {}: {error}",
                    self.node
                ))
            }
        };
        let pair = authority
            .issue_node(self.node, &self.names(), validity)
            .map_err(refused)?;
        let folder = self.dir.join(format!("node-{}", self.node));
        fs::create_dir_all(&folder).map_err(|error| Failure::of_file("create", &folder, &error))?;
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        let renewed = fs::symlink_metadata(&cert).is_ok();
        self.store(&cert, &pair.certificate, &key, &pair.key)?;
        let extended = extend_list(&authority, &ca.list(), now, validity.not_after)?;
        let identity = format!("mraft://{}/node/{}", authority.cluster(), self.node);
        let (done, after) = if renewed {
            ("renewed", ", in place of the old pair")
        } else {
            ("made", "")
        };
        writeln!(
            out,
            "{done} the certificate of {identity} in {}, good until {}{after}",
            folder.display(),
            rfc3339(validity.not_after),
        )
        .map_err(Failure::of_stdout)?;
        if let Some(until) = extended {
            let list = ca.list();
            writeln!(
                out,
                "extended the revocation list {} until {until}",
                list.display()
            )
            .map_err(Failure::of_stdout)?;
        }
        Ok(())
    }

    fn names(&self) -> Vec<HostName> {
        let local = LOCAL_NAMES.iter().filter_map(|name| name.parse().ok());
        let mut names: Vec<HostName> = local.collect();
        for host in &self.hosts {
            if !names.contains(host) {
                names.push(host.clone());
            }
        }
        names
    }

    /// The key is placed first: found with the old certificate it is recognised as another's, and
    /// with the new one it is right.
    fn store(&self, cert: &Path, cert_pem: &str, key: &Path, key_pem: &str) -> Result<(), Failure> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| Failure::of_file("write", &path, &error)
        };
        let staged_key =
            Staged::write(key, key_pem.as_bytes(), Readers::Owner).map_err(failed(key))?;
        let staged_cert =
            Staged::write(cert, cert_pem.as_bytes(), Readers::All).map_err(failed(cert))?;
        staged_key.place().map_err(failed(key))?;
        staged_cert.place().map_err(|error| {
            Failure::work(format!(
                "{} is new but {} is not: {error}; run the command again before the node is started",
                key.display(),
                cert.display()
            ))
        })?;
        let folder = durable::folder_of(cert);
        durable::sync_folder(folder).map_err(failed(folder))
    }
}

pub(super) fn read_authority(dir: &Path, ca: &CaFiles) -> Result<Authority, Failure> {
    let read = |path: PathBuf| {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is foreign and open"
        )]
        fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::usage(format!(
                "{} does not exist; make the CA first with `multigroup certs init --dir {} \
                 --cluster NAME`",
                path.display(),
                dir.display()
            )),
            io::ErrorKind::InvalidData => {
                Failure::usage(format!("{} holds no PEM; is --dir right?", path.display()))
            }
            _ => Failure::of_file("read", &path, &error),
        })
    };
    let (certificate, key) = (read(ca.certificate())?, read(ca.key())?);
    Authority::from_pem(&certificate, &key).map_err(|error| {
        Failure::usage(format!(
            "CA in {} can't be used: {error}; restore its files or make another with \
             `multigroup certs init`",
            ca.folder.display()
        ))
    })
}

/// Signs the list anew if it ends before the leaf; gives its new end.
fn extend_list(
    authority: &Authority,
    path: &Path,
    now: OffsetDateTime,
    leaf_not_after: OffsetDateTime,
) -> Result<Option<String>, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        // A cluster may do without a list.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::of_file("read", path, &error)),
    };
    let broken = |error: CertificateError| {
        Failure::work(format!(
            "certificate was made, but {} can't be extended: {error}; restore it",
            path.display()
        ))
    };
    let mut list = RevocationList::from_pem(&text).map_err(broken)?;
    if list.next_update >= leaf_not_after {
        return Ok(None);
    }
    list.number += 1;
    list.next_update = leaf_not_after.max(now + LIST_VALIDITY);
    let signed = authority
        .make_crl(&list, now - CLOCK_ALLOWANCE)
        .map_err(broken)?;
    durable::write(path, signed.as_bytes(), Readers::All)
        .map_err(|error| Failure::of_file("write", path, &error))?;
    Ok(Some(rfc3339(list.next_update)))
}
