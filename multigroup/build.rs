//! Tells the binary which features and debug switches it was built with, so that a measured or
//! shipped binary can be shown to have none (`--version --json`).

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = env::vars().filter_map(|(name, _)| {
        let feature = name.strip_prefix("CARGO_FEATURE_")?;
        (feature != "DEFAULT").then(|| feature.to_ascii_lowercase().replace('_', "-"))
    });
    let mut features: Vec<String> = features.collect();
    features.sort();
    // Cargo passes on the cfgs given by RUSTFLAGS, a bare one as an empty value.
    let mut cfgs = Vec::new();
    for name in ["loom", "mutants"] {
        let Ok(values) = env::var(format!("CARGO_CFG_{}", name.to_ascii_uppercase())) else {
            continue;
        };
        cfgs.extend(values.split(',').map(|value| match value {
            "" => name.to_owned(),
            value => format!("{name}={value}"),
        }));
    }
    println!(
        "cargo::rustc-env=MULTIGROUP_FEATURES={}",
        features.join(",")
    );
    println!("cargo::rustc-env=MULTIGROUP_CFGS={}", cfgs.join(","));
    println!(
        "cargo::rustc-env=MULTIGROUP_PROFILE={}",
        env::var("PROFILE").unwrap_or_default()
    );
    let profile = env::var("PROFILE").unwrap_or_default();
    let commit = (profile == "release").then(commit).flatten();
    println!(
        "cargo::rustc-env=MULTIGROUP_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
}

/// The commit that a measured or shipped binary is from. Other builds don't ask, since each commit
/// would build them again.
fn commit() -> Option<String> {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    for moved in ["HEAD", "logs/HEAD"] {
        println!(
            "cargo::rerun-if-changed={}",
            git(&["rev-parse", "--git-path", moved])?
        );
    }
    Some(commit)
}
