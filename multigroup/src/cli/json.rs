//! Where `--json` writes: a file, written whole or not at all; what is no file (a pipe, a device),
//! written into and left what it is; or `-` for standard output. Where nothing can be written is
//! known before anything is done.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

use super::durable;
use super::failure::Failure;

/// The value of a `--json` option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    File(PathBuf),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = match text {
            "-" => return Ok(Self::Stdout),
            "" => return Err("no file is named; name one, or - for standard output".to_owned()),
            path => PathBuf::from(path),
        };
        if path.is_dir() {
            return Err("this is a folder; name a file in it".to_owned());
        }
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        match folder {
            Some(folder) if !folder.is_dir() => {
                let folder = folder.display();
                Err(format!(
                    "there is no folder {folder}; make it, or name another file"
                ))
            }
            _ => Ok(Self::File(path)),
        }
    }
}

impl Target {
    /// Writes one value and a line's end.
    pub(super) fn write(&self, value: &impl Serialize, out: &mut dyn Write) -> Result<(), Failure> {
        let mut text = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::work(format!("can't form the JSON result: {error}")))?;
        text.push('\n');
        match self {
            Self::Stdout => out.write_all(text.as_bytes()).map_err(Failure::of_stdout),
            Self::File(path) if is_special(path) => OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|error| Failure::of_input("write", path, &error)),
            Self::File(path) if holds_pem(path) => Err(Failure::usage(format!(
                "{} holds a certificate or a key, which the JSON result would take the place of; \
                 choose another file",
                path.display()
            ))),
            Self::File(path) => {
                // A link stays one, and leads to the new content.
                let file = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                durable::write(&file, text.as_bytes(), durable::Readers::All)
                    .map_err(|error| Failure::of_input("write", path, &error))
            }
        }
    }
}

/// Whether this is there and is no regular file: a pipe, a device, a socket. A new file must not
/// take its place.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file())
}

/// Whether the file begins like one that nobody means to overwrite with a result.
fn holds_pem(path: &Path) -> bool {
    let mut first = [0; 11];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first == *b"-----BEGIN "
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_takes_the_place_of_an_older_result_and_of_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("result.json");
        let write = |content: &str| {
            fs::write(&target, content).unwrap();
            Target::File(target.clone())
                .write(&1, &mut Vec::new())
                .is_ok()
        };
        assert!(write("{}"));
        assert!(write(""));
        assert!(!write("-----BEGIN PRIVATE KEY-----\n"));
        assert!(fs::read_to_string(&target).unwrap().contains("PRIVATE KEY"));
    }
    #[test]
    fn a_link_and_a_device_stay_what_they_are() {
        use std::os::unix::fs::{FileTypeExt as _, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (link, file) = (dir.path().join("link"), dir.path().join("file"));
        fs::write(&file, "{}").unwrap();
        symlink(&file, &link).unwrap();
        let target: Target = link.to_str().unwrap().parse().unwrap();
        target.write(&7, &mut Vec::new()).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "7\n");
        // What a write there would do to the machine is why it isn't tried on `/dev/null` itself.
        assert!(is_special(Path::new("/dev/null")));
        assert!(
            fs::metadata("/dev/null")
                .unwrap()
                .file_type()
                .is_char_device()
        );
    }

    #[test]
    fn where_nothing_can_be_written_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let nowhere = dir.path().join("no/such.json");
        for path in ["", dir.path().to_str().unwrap(), nowhere.to_str().unwrap()] {
            assert!(path.parse::<Target>().is_err(), "{path:?}");
        }
        assert_eq!("-".parse(), Ok(Target::Stdout));
    }
}
