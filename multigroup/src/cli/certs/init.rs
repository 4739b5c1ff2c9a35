//! `certs init`: a CA for a cluster, and its first, empty revocation list. The folder `ca` appears
//! whole or not at all, and one that is there is never touched: its key can't be had again.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use transport::id::ClusterName;

use super::{CA_VALIDITY, CLOCK_ALLOWANCE, CaFiles, LIST_VALIDITY};
use crate::certificates::{Authority, CertificateError, RevocationList, Validity, rfc3339};
use crate::cli::durable::{self, Readers};
use crate::cli::failure::Failure;
use crate::cli::wall_clock;

/// Make the CA of a cluster and its empty revocation list
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup certs init --dir demo --cluster dev")]
pub(super) struct Init {
    /// The cluster's folder; the CA goes into its folder `ca`
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The cluster's name: 1 to 63 characters of a-z, A-Z, 0-9, '-', '_' and '.'
    #[arg(long, value_name = "NAME")]
    cluster: ClusterName,
}

/// A folder under construction; removed unless it is put in its place.
struct Scaffold {
    path: PathBuf,
    placed: bool,
}

impl Drop for Scaffold {
    fn drop(&mut self) {
        if !self.placed {
            // A leftover does no harm, and the failure that led here is the one to report.
            let _left_over = fs::remove_dir_all(&self.path);
        }
    }
}

impl Init {
    pub(super) fn new(dir: &Path, cluster: ClusterName) -> Self {
        let dir = dir.to_owned();
        Self { dir, cluster }
    }

    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let files = CaFiles::of(&self.dir);
        if fs::symlink_metadata(&files.folder).is_ok() {
            return Err(exists(&files.folder));
        }
        fs::create_dir_all(&self.dir)
            .map_err(|error| Failure::of_file("create", &self.dir, &error))?;
        let mut scaffold = Scaffold {
            path: self.dir.join(format!(".ca.{}.tmp", std::process::id())),
            placed: false,
        };
        fs::create_dir(&scaffold.path)
            .map_err(|error| Failure::of_file("create a folder in", &self.dir, &error))?;
        let not_after = self.write(&CaFiles {
            folder: scaffold.path.clone(),
        })?;
        match fs::rename(&scaffold.path, &files.folder) {
            Ok(()) => scaffold.placed = true,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) =>
            {
                return Err(exists(&files.folder));
            }
            Err(error) => return Err(Failure::of_file("create", &files.folder, &error)),
        }
        durable::sync_folder(&self.dir)
            .map_err(|error| Failure::of_file("sync", &self.dir, &error))?;
        writeln!(
            out,
            "made the CA of cluster {} in {}, good until {not_after}\n\
             keep {} secret: whoever has it can make nodes",
            self.cluster,
            files.folder.display(),
            files.key().display(),
        )
        .map_err(Failure::of_stdout)
    }

    fn write(&self, files: &CaFiles) -> Result<String, Failure> {
        let now = wall_clock();
        let validity = Validity {
            not_before: now - CLOCK_ALLOWANCE,
            not_after: now + CA_VALIDITY,
        };
        let failed = |error: CertificateError| {
            Failure::work(format!("can't make the CA of {}: {error}", self.cluster))
        };
        let (authority, pair) = Authority::make(&self.cluster, validity).map_err(failed)?;
        let list = RevocationList {
            number: 1,
            next_update: now + LIST_VALIDITY,
            revoked: Vec::new(),
        };
        let list = authority
            .make_crl(&list, validity.not_before)
            .map_err(failed)?;
        let write = |path: PathBuf, text: &str, readers| {
            durable::write(&path, text.as_bytes(), readers)
                .map_err(|error| Failure::of_file("write the CA's files in", &self.dir, &error))
        };
        write(files.key(), &pair.key, Readers::Owner)?;
        write(files.certificate(), &pair.certificate, Readers::All)?;
        write(files.list(), &list, Readers::All)?;
        Ok(rfc3339(validity.not_after))
    }
}

fn exists(folder: &Path) -> Failure {
    Failure::work(format!(
        "{} already exists, and a CA is never overwritten; choose another --dir, or remove it if \
         no node uses its certificates",
        folder.display()
    ))
}
