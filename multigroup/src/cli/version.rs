//! `--version`: what this binary is and what it was built with. The gate holds the lists of
//! features and cfgs against empty ones before it measures or ships a binary.

use std::io::Write;

use serde::Serialize;

use super::failure::Failure;
use super::json::Target;

#[derive(Debug, Serialize)]
struct Version {
    schema: &'static str,
    version: &'static str,
    profile: &'static str,
    /// Of release builds from a checkout; others don't ask, since each commit would build them anew.
    commit: &'static str,
    features: Vec<&'static str>,
    cfgs: Vec<&'static str>,
}

fn listed(text: &'static str) -> Vec<&'static str> {
    text.split(',').filter(|name| !name.is_empty()).collect()
}

pub(super) fn print(json: Option<&Target>, out: &mut dyn Write) -> Result<(), Failure> {
    let version = Version {
        schema: "multigroup.version/1",
        version: env!("CARGO_PKG_VERSION"),
        profile: env!("MULTIGROUP_PROFILE"),
        commit: env!("MULTIGROUP_COMMIT"),
        features: listed(env!("MULTIGROUP_FEATURES")),
        cfgs: listed(env!("MULTIGROUP_CFGS")),
    };
    match json {
        Some(target) => target.write(&version, out),
        None => writeln!(out, "multigroup {}", version.version).map_err(Failure::of_stdout),
    }
}
