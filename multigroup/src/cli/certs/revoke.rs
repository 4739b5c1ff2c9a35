//! `certs revoke`: puts the certificate of a node, or one known by its serial number, on the CA's
//! revocation list. The list is signed anew and takes the old one's place whole. Nodes read it
//! within a second where `tls.crl` names it; carrying it to other machines is the operator's
//! business.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use transport::id::PeerId;

use super::node::read_authority;
use super::{CLOCK_ALLOWANCE, CaFiles, LIST_VALIDITY};
use crate::certificates::{CertificateError, Revocation, RevocationList, leaf_serial, rfc3339};
use crate::cli::durable::{self, Readers};
use crate::cli::failure::Failure;
use crate::cli::wall_clock;

/// Bytes of a serial number, as X.509 has it.
const SERIAL_BYTES_MAX: usize = 20;

/// Put a node's certificate on the revocation list
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup certs revoke --dir demo --node 3\n  \
                        multigroup certs revoke --dir demo --serial 0b31963ef09a558d"
)]
pub(super) struct Revoke {
    /// The cluster's folder, in which `certs init` made the CA
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The node whose certificate, as it is in the cluster's folder now, is to be revoked
    #[arg(long, value_name = "N", required_unless_present = "serial")]
    node: Option<PeerId>,
    /// A certificate by its serial number, as `certs show` and the logs have it: one that was
    /// replaced since
    #[arg(long, value_name = "HEX", value_parser = parse_serial, conflicts_with = "node")]
    serial: Option<Serial>,
}

/// A serial number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Serial(Vec<u8>);

impl std::fmt::Display for Serial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn parse_serial(text: &str) -> Result<Serial, String> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        (pair.len() == 2).then(|| u8::from_str_radix(pair, 16).ok())?
    };
    let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
    match bytes {
        Some(bytes) if (1..=SERIAL_BYTES_MAX).contains(&bytes.len()) => Ok(Serial(bytes)),
        _ => Err(format!(
            "it is 1 to {SERIAL_BYTES_MAX} bytes in hex, as `certs show` prints it"
        )),
    }
}

impl Revoke {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let ca = CaFiles::of(&self.dir);
        let authority = read_authority(&self.dir, &ca)?;
        let (serial, whose) = self.which()?;
        let path = ca.list();
        let now = wall_clock();
        let mut list = read_list(&path)?.unwrap_or(RevocationList {
            number: 0,
            next_update: now,
            revoked: Vec::new(),
        });
        let on_it = |revoked: &Revocation| revoked.serial == serial.0;
        if let Some(revoked) = list.revoked.iter().find(|revoked| on_it(revoked)) {
            let since = rfc3339(revoked.since);
            return writeln!(out, "{whose}, serial {serial}, is revoked since {since}")
                .map_err(Failure::of_stdout);
        }
        list.revoked.push(Revocation {
            serial: serial.0.clone(),
            since: now,
        });
        list.number += 1;
        list.next_update = list.next_update.max(now + LIST_VALIDITY);
        let signed = authority
            .make_crl(&list, now - CLOCK_ALLOWANCE)
            .map_err(|error| Failure::work(format!("can't sign {}: {error}", path.display())))?;
        durable::write(&path, signed.as_bytes(), Readers::All)
            .map_err(|error| Failure::of_file("write", &path, &error))?;
        writeln!(
            out,
            "revoked {whose}, serial {serial}, in {}\n\
             nodes whose `tls.crl` names that file end its sessions within a second; copy it to \
             the others",
            path.display()
        )
        .map_err(Failure::of_stdout)
    }

    /// The serial number that is meant, and words for whose it is.
    fn which(&self) -> Result<(Serial, String), Failure> {
        let node = match (&self.serial, self.node) {
            (Some(serial), _) => return Ok((serial.clone(), "certificate".to_owned())),
            (None, Some(node)) => node,
            (None, None) => {
                return Err(Failure::usage(
                    "nothing is named to be revoked; give --node or --serial".to_owned(),
                ));
            }
        };
        let path = self.dir.join(format!("node-{node}")).join("cert.pem");
        let text = fs::read_to_string(&path).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                return Failure::usage(format!(
                    "{} does not exist; give --serial for a certificate that isn't here any more",
                    path.display()
                ));
            }
            Failure::of_file("read", &path, &error)
        })?;
        let serial = leaf_serial(&text).map_err(|error| {
            Failure::usage(format!("{}: {error}; give --serial", path.display()))
        })?;
        Ok((Serial(serial), format!("the certificate of node {node}")))
    }
}

fn read_list(path: &Path) -> Result<Option<RevocationList>, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::of_file("read", path, &error)),
    };
    let broken = |error: CertificateError| {
        Failure::usage(format!(
            "{} can't be added to: {error}; restore it",
            path.display()
        ))
    };
    RevocationList::from_pem(&text).map(Some).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_are_read_as_they_are_printed() {
        let serial = parse_serial("0B:31:96").unwrap();
        assert_eq!(serial, parse_serial("0b3196").unwrap());
        assert_eq!(serial.to_string(), "0b3196");
        for bad in ["", "0", "0b3", "xy", "é9", &"00".repeat(21)] {
            assert!(parse_serial(bad).is_err(), "{bad:?}");
        }
    }
}
