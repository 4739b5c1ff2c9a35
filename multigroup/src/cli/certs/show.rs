//! `certs show`: what stands in a certificate or revocation-list file, for people and as JSON. It
//! checks nothing against anything: whether a node would accept the file is the node's to say.

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use clap::Args;
use serde::Serialize;
use time::OffsetDateTime;
use transport::id::NodeIdentity;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ExtendedKeyUsage, GeneralName};
use x509_parser::pem::Pem;
use x509_parser::revocation_list::CertificateRevocationList;
use x509_parser::x509::X509Name;

use crate::certificates::{cluster_of, rfc3339};
use crate::cli::failure::Failure;
use crate::cli::json::Target;
use crate::cli::wall_clock;

/// Bytes of a file that are looked at: as much as a node reads. A longer file is refused.
const FILE_BYTES_MAX: u64 = transport::limits::CREDENTIAL_FILE_BYTES_MAX;

/// Revoked serials that the text names; JSON has them all.
const REVOKED_SHOWN: usize = 20;

/// Show what a certificate, CA or revocation-list file says
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup certs show demo/node-1/cert.pem")]
pub(super) struct Show {
    /// A PEM file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the result as JSON to a file, or to stdout in place of the text with -
    #[arg(long, value_name = "FILE")]
    json: Option<Target>,
}

#[derive(Debug, Serialize)]
struct Shown {
    schema: &'static str,
    file: String,
    items: Vec<Item>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Item {
    Leaf(Certificate),
    Ca(Certificate),
    RevocationList(List),
}

#[derive(Debug, Serialize)]
struct Certificate {
    subject: String,
    issuer: String,
    /// A leaf's node, a CA's cluster.
    identity: Option<String>,
    serial: String,
    not_before: String,
    not_after: String,
    days_left: i64,
    names: Vec<String>,
    extended_key_usage: Vec<String>,
    fingerprint_sha256: String,
}

#[derive(Debug, Serialize)]
struct List {
    issuer: String,
    number: Option<String>,
    this_update: String,
    next_update: Option<String>,
    days_left: Option<i64>,
    revoked_serials: Vec<String>,
    fingerprint_sha256: String,
}

impl Show {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let now = wall_clock();
        let shown = Shown {
            schema: "multigroup.certs_show/1",
            file: self.file.display().to_string(),
            items: read(&self.file, now)?,
        };
        if let Some(target) = &self.json {
            target.write(&shown, out)?;
        }
        if self.json != Some(Target::Stdout) {
            out.write_all(shown.text(now).as_bytes())
                .map_err(Failure::of_stdout)?;
        }
        Ok(())
    }
}

fn read(file: &Path, now: OffsetDateTime) -> Result<Vec<Item>, Failure> {
    let failed = |error| Failure::of_input("read", file, &error);
    let metadata = fs::metadata(file).map_err(failed)?;
    let name = file.display();
    if metadata.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    // A pipe would be waited for; a device may never end.
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{name} is not a regular file of at most {FILE_BYTES_MAX} bytes; name a PEM file"
        )));
    }
    let bytes = fs::read(file).map_err(failed)?;
    let mut items = Vec::new();
    for (index, block) in Pem::iter_from_buffer(&bytes).enumerate() {
        let position = index + 1;
        let block = block.map_err(|_| {
            Failure::usage(format!(
                "block {position} of {name} is broken PEM; copy the file again from its source"
            ))
        })?;
        let item = item(&block, now).ok_or_else(|| {
            Failure::usage(format!(
                "block {position} of {name} is not a well-formed {:?}; copy the file again from \
                 its source",
                block.label
            ))
        })?;
        items.push(item.map_err(|label| {
            Failure::usage(format!(
                "{name} holds a {label}, which is not shown; name a certificate or a \
                 revocation list"
            ))
        })?);
    }
    if items.is_empty() {
        return Err(Failure::usage(format!(
            "{name} holds no PEM; name a certificate, CA or revocation-list file"
        )));
    }
    Ok(items)
}

/// What a block says; its label if it is of no kind that is shown, `None` if it is malformed.
fn item(block: &Pem, now: OffsetDateTime) -> Option<Result<Item, &str>> {
    let fingerprint = hex(digest::digest(&digest::SHA256, &block.contents).as_ref());
    match block.label.as_str() {
        "CERTIFICATE" => {
            let Ok(([], parsed)) = x509_parser::parse_x509_certificate(&block.contents) else {
                return None;
            };
            let certificate = certificate(&parsed, fingerprint, now);
            Some(Ok(if parsed.is_ca() {
                Item::Ca(certificate)
            } else {
                Item::Leaf(certificate)
            }))
        }
        "X509 CRL" => {
            let Ok(([], parsed)) = x509_parser::parse_x509_crl(&block.contents) else {
                return None;
            };
            Some(Ok(Item::RevocationList(list(&parsed, fingerprint, now))))
        }
        label => Some(Err(label)),
    }
}

fn certificate(
    parsed: &X509Certificate<'_>,
    fingerprint_sha256: String,
    now: OffsetDateTime,
) -> Certificate {
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map_or(&[][..], |names| names.value.general_names.as_slice());
    let mut uris = names.iter().filter_map(|name| {
        if let GeneralName::URI(uri) = name {
            Some(*uri)
        } else {
            None
        }
    });
    let identity = if parsed.is_ca() {
        cluster_of(parsed).map(|cluster| format!("cluster {cluster}"))
    } else {
        // As a node reads it: exactly one URI counts.
        let (first, second) = (uris.next(), uris.next());
        first
            .filter(|_| second.is_none())
            .and_then(|uri| uri.parse::<NodeIdentity>().ok())
            .map(|identity| identity.to_string())
    };
    let usage = parsed.extended_key_usage().ok().flatten();
    let not_after = parsed.validity().not_after.to_datetime();
    Certificate {
        subject: text_of(parsed.subject()),
        issuer: text_of(parsed.issuer()),
        identity,
        serial: hex(parsed.raw_serial()),
        not_before: rfc3339(parsed.validity().not_before.to_datetime()),
        not_after: rfc3339(not_after),
        days_left: (not_after - now).whole_days(),
        names: names.iter().map(name_text).collect(),
        extended_key_usage: usage.map_or_else(Vec::new, |usage| usages(usage.value)),
        fingerprint_sha256,
    }
}

fn list(
    parsed: &CertificateRevocationList<'_>,
    fingerprint_sha256: String,
    now: OffsetDateTime,
) -> List {
    let next = parsed.next_update().map(|next| next.to_datetime());
    let revoked = parsed.iter_revoked_certificates();
    List {
        issuer: text_of(parsed.issuer()),
        number: parsed.crl_number().map(ToString::to_string),
        this_update: rfc3339(parsed.last_update().to_datetime()),
        next_update: next.map(rfc3339),
        days_left: next.map(|next| (next - now).whole_days()),
        revoked_serials: revoked.map(|entry| hex(entry.raw_serial())).collect(),
        fingerprint_sha256,
    }
}

fn name_text(name: &GeneralName<'_>) -> String {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the rest are only named by their kind"
    )]
    let text = match name {
        GeneralName::URI(uri) => format!("URI {uri}"),
        GeneralName::DNSName(host) => format!("DNS {host}"),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.map_or_else(
                |_| "IP of a wrong length".to_owned(),
                |ip| format!("IP {ip}"),
            )
        }
        other => other.to_string(),
    };
    printable(&text)
}

fn usages(usage: &ExtendedKeyUsage<'_>) -> Vec<String> {
    let known = [
        (usage.any, "any"),
        (usage.server_auth, "server"),
        (usage.client_auth, "client"),
        (usage.code_signing, "code signing"),
        (usage.email_protection, "email protection"),
        (usage.time_stamping, "time stamping"),
        (usage.ocsp_signing, "OCSP signing"),
    ];
    let known = known.into_iter().filter(|(has, _)| *has);
    let other = usage.other.iter().map(ToString::to_string);
    known
        .map(|(_, name)| name.to_owned())
        .chain(other)
        .collect()
}

fn text_of(name: &X509Name<'_>) -> String {
    printable(&name.to_string())
}

/// Foreign text on one line of its own.
fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "?")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Shown {
    fn text(&self, now: OffsetDateTime) -> String {
        let mut text = String::new();
        let count = self.items.len();
        for (index, item) in self.items.iter().enumerate() {
            let (kind, fields) = match item {
                Item::Leaf(leaf) => ("leaf", leaf.fields(now)),
                Item::Ca(ca) => ("CA", ca.fields(now)),
                Item::RevocationList(list) => ("revocation list", list.fields(now)),
            };
            let place = match count {
                1 => String::new(),
                _ => format!(" ({} of {count})", index + 1),
            };
            // Writing to a string can't fail.
            let _ok = writeln!(text, "{}: {kind}{place}", printable(&self.file));
            for (name, value) in fields {
                let _ok = writeln!(text, "  {name:<13} {value}");
            }
        }
        text
    }
}

type Fields = Vec<(&'static str, String)>;

fn or_none(values: &[String], none: &str) -> String {
    if values.is_empty() {
        none.to_owned()
    } else {
        values.join(", ")
    }
}

/// How much time is left, in words.
fn left(days_left: i64, ends: &str, now: OffsetDateTime) -> String {
    if ends <= rfc3339(now).as_str() {
        format!("EXPIRED {} days ago", -days_left)
    } else {
        format!("{days_left} days left")
    }
}

impl Certificate {
    fn fields(&self, now: OffsetDateTime) -> Fields {
        let early = if self.not_before > rfc3339(now) {
            ", NOT VALID YET"
        } else {
            ""
        };
        let left = left(self.days_left, &self.not_after, now);
        let identity = self.identity.clone();
        vec![
            ("subject", self.subject.clone()),
            ("issuer", self.issuer.clone()),
            ("identity", identity.unwrap_or_else(|| "none".to_owned())),
            ("serial", self.serial.clone()),
            (
                "valid",
                format!("{} to {} ({left}{early})", self.not_before, self.not_after),
            ),
            ("names", or_none(&self.names, "none")),
            ("use", or_none(&self.extended_key_usage, "any")),
            ("sha256", self.fingerprint_sha256.clone()),
        ]
    }
}

impl List {
    fn fields(&self, now: OffsetDateTime) -> Fields {
        let due = match (&self.next_update, self.days_left) {
            (Some(next), Some(days)) => format!("{next} ({})", left(days, next, now)),
            _ => "never".to_owned(),
        };
        let shown = self.revoked_serials.iter().take(REVOKED_SHOWN).cloned();
        let mut revoked = or_none(&shown.collect::<Vec<_>>(), "none");
        let rest = self.revoked_serials.len().saturating_sub(REVOKED_SHOWN);
        if rest > 0 {
            let _ok = write!(revoked, " and {rest} more");
        }
        vec![
            ("issuer", self.issuer.clone()),
            (
                "number",
                self.number.clone().unwrap_or_else(|| "none".to_owned()),
            ),
            ("issued", self.this_update.clone()),
            ("next due", due),
            ("revoked", revoked),
            ("sha256", self.fingerprint_sha256.clone()),
        ]
    }
}
