//! The rules of ARCHITECTURE.md that a compiler does not check: which package may depend on which, which folder may name
//! which crate or sibling, how long a file may be, what a file may not be called or contain.
//!
//! Reads manifests and source lines only. Each rule is a table here; an exception names its reason beside it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A source file, relative to the repository root.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Lines that are code: comments and everything from an inline test module on are left out.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = inline_tests_start(&self.text).unwrap_or(usize::MAX);
        self.text
            .lines()
            .enumerate()
            .take(end)
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .map(|(n, line)| (n + 1, line))
    }

    /// Whether the whole file is test code.
    fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name == "tests.rs"
            || name.ends_with("_tests.rs")
            || self.path.split('/').skip(1).any(|part| part == "tests" || part == "benches")
    }
}

/// Line number (from 0) of `#[cfg(test)]` followed by an inline `mod … {`.
fn inline_tests_start(text: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().collect();
    (0..lines.len()).find(|&n| {
        lines[n].trim() == "#[cfg(test)]"
            && lines[n + 1..]
                .iter()
                .find(|l| !l.trim().starts_with("#["))
                .is_some_and(|l| l.contains("mod ") && l.trim_end().ends_with('{'))
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository root").to_path_buf()
}

/// Every file of the repository but build output, caches and binary data.
fn repository_files() -> Vec<Source> {
    let root = root();
    let mut pending = vec![root.clone()];
    let mut files = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder).expect("readable folder") {
            let entry = entry.expect("readable entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("file type");
            if kind.is_dir() {
                if !["target", ".git", ".cache", ".peers", "node_modules", "__pycache__"].contains(&name.as_str()) {
                    pending.push(entry.path());
                }
            } else if kind.is_file()
                && name != ".git"
                && let Ok(text) = std::fs::read_to_string(entry.path())
            {
                let path = entry.path().strip_prefix(&root).expect("under the root").to_string_lossy().into_owned();
                files.push(Source { path, text });
            }
        }
    }
    assert!(files.iter().any(|f| f.path == "gateway/src/main.rs"), "the walk must see the gateway");
    files
}

fn rust_sources() -> Vec<Source> {
    repository_files().into_iter().filter(|f| f.path.ends_with(".rs")).collect()
}

fn report(rule: &str, faults: Vec<String>) {
    let mut text = String::new();
    for fault in &faults {
        let _ = writeln!(text, "  {fault}");
    }
    assert!(faults.is_empty(), "{rule}:\n{text}");
}

/// What each package may depend on inside the workspace: (manifest folder, package, normal, dev only).
const PACKAGE_ARROWS: &[(&str, &str, &[&str], &[&str])] = &[
    ("common", "forebay-common", &[], &[]),
    ("ebpf", "forebay-ebpf", &["forebay-common"], &[]),
    ("transfer-agent", "forebay-agent", &["forebay-common", "forebay-ebpf"], &[]),
    ("gateway/routing", "forebay-routing", &["forebay-common"], &[]),
    ("gateway", "forebay", &["forebay-common", "forebay-routing"], &["forebay-engine"]),
    ("tests/engine", "forebay-engine", &[], &[]),
    ("tests/kernel", "forebay-kernel-tests", &["forebay-agent", "forebay-common", "forebay-ebpf"], &[]),
    ("tests/sim", "forebay-sim", &["forebay-engine", "forebay-routing"], &[]),
    ("tests/bench", "forebay-bench", &[], &["forebay-engine", "forebay-routing"]),
    ("tests", "forebay-tests", &["forebay", "forebay-common", "forebay-engine", "forebay-routing", "forebay-sim"], &[]),
];

/// Crates that a package may not name, by prefix: the pure packages do no I/O, the gateway has no kernel privileges.
const CRATE_BANS: &[(&str, &[&str])] = &[
    ("forebay-common", &["tokio", "pingora", "hyper", "http", "zmq", "aya", "axum", "libc", "tracing", "fastrand"]),
    ("forebay-routing", &["tokio", "pingora", "hyper", "http", "zmq", "aya", "axum", "libc", "tracing", "serde_json"]),
    ("forebay", &["aya"]),
    ("forebay-engine", &["pingora", "aya"]),
    ("forebay-agent", &["pingora", "aya", "libc"]),
    ("forebay-sim", &["tokio", "pingora", "hyper", "http", "zmq", "aya"]),
];

fn dependency_names(manifest: &toml::Table, table: &str) -> BTreeSet<String> {
    manifest.get(table).and_then(toml::Value::as_table).map(|t| t.keys().cloned().collect()).unwrap_or_default()
}

#[test]
fn packages_depend_in_one_direction() {
    let mut faults = Vec::new();
    let workspace: toml::Table =
        std::fs::read_to_string(root().join("Cargo.toml")).expect("root manifest").parse().expect("valid TOML");
    let members = workspace["workspace"]["members"].as_array().expect("members");
    assert_eq!(
        members.len(),
        PACKAGE_ARROWS.len(),
        "a package was added or removed: give it its arrows in this test and in ARCHITECTURE.md"
    );
    for &(folder, package, normal, dev) in PACKAGE_ARROWS {
        let text = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("package manifest");
        let manifest: toml::Table = text.parse().expect("valid TOML");
        assert_eq!(manifest["package"]["name"].as_str(), Some(package));
        let banned = CRATE_BANS.iter().find(|(p, _)| *p == package).map_or(&[][..], |(_, bans)| bans);
        for (table, is_dev) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)] {
            for name in dependency_names(&manifest, table) {
                let ours = name == "forebay" || name.starts_with("forebay-");
                let allowed = normal.contains(&name.as_str()) || (is_dev && dev.contains(&name.as_str()));
                if ours && !allowed {
                    faults.push(format!("{package} may not depend on {name} ({folder}/Cargo.toml, {table})"));
                }
                if !is_dev && banned.iter().any(|ban| name.starts_with(ban)) {
                    faults.push(format!("{package} may not use the crate {name} ({folder}/Cargo.toml, {table})"));
                }
            }
        }
    }
    report("arrows between packages", faults);
}

/// Words that only the named places may use: (word, where it is looked for, places allowed, why).
const NAMING: &[(&str, &str, &[&str], &str)] = &[
    (
        "pingora",
        "gateway/src/",
        &["gateway/src/accept/", "gateway/src/dispatch/", "gateway/src/stream/", "gateway/src/main.rs"],
        "the HTTP library stays at the edges",
    ),
    ("zmq::", "gateway/src/", &["gateway/src/signal/"], "engine events enter through signal"),
    ("aya", "gateway/src/", &[], "kernel signals reach the gateway as records"),
    ("aya", "transfer-agent/src/", &[], "one package names aya, so that its next version is a change in one place"),
    ("aya", "common/src/", &[], "what kernel and processes share knows neither side"),
    ("tokenizers::", "gateway/src/", &["gateway/src/tokenize/"], "token ids are made in one step"),
    ("minijinja", "gateway/src/", &["gateway/src/tokenize/"], "templates are rendered in one step"),
    ("Instant::now", "gateway/routing/src/", &[], "time is an argument of the pure core"),
    ("SystemTime", "gateway/routing/src/", &[], "time is an argument of the pure core"),
    ("std::env", "gateway/routing/src/", &[], "the pure core reads no environment"),
    ("std::fs", "gateway/routing/src/", &[], "the pure core does no I/O"),
    ("std::net", "gateway/routing/src/", &[], "the pure core does no I/O"),
    ("fastrand::Rng::new()", "gateway/routing/src/", &[], "randomness is an argument of the pure core"),
];

/// Siblings that a gateway step may not name: what comes later in a request, and what steers it.
const STEP_BANS: &[(&str, &[&str])] = &[
    ("parse", &["accept", "tokenize", "fleet", "dispatch", "stream", "serve", "admin", "signal", "discover"]),
    ("tokenize", &["accept", "dispatch", "stream", "serve", "admin", "signal", "discover"]),
    ("stream", &["accept", "tokenize", "serve", "admin", "signal", "discover"]),
    ("dispatch", &["accept", "tokenize", "serve", "admin", "discover"]),
    ("signal", &["accept", "dispatch", "stream", "serve", "admin"]),
    ("discover", &["accept", "dispatch", "stream", "serve", "admin", "tokenize"]),
    ("doors", &["accept", "parse", "tokenize", "fleet", "dispatch", "stream", "serve", "admin", "signal", "discover"]),
    ("observe", &["accept", "dispatch", "serve", "admin", "signal", "discover"]),
];

/// Whether `line` contains `word` that does not continue an identifier to its left.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let joins_right =
            word.chars().all(|c| c.is_alphanumeric()) && word.len() <= 3 && after.is_some_and(|c| c.is_alphanumeric());
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_') && !joins_right
    })
}

#[test]
fn folders_name_only_what_they_may() {
    let mut faults = Vec::new();
    for source in rust_sources().iter().filter(|s| !s.is_test()) {
        for &(word, within, allowed, why) in NAMING {
            if !source.path.starts_with(within) || allowed.iter().any(|place| source.path.starts_with(place)) {
                continue;
            }
            for (number, line) in source.code().filter(|(_, line)| names(line, word)) {
                faults.push(format!("{}:{number} names `{word}` ({why}): {}", source.path, line.trim()));
            }
        }
        for &(step, bans) in STEP_BANS {
            if !source.path.starts_with(&format!("gateway/src/{step}/")) {
                continue;
            }
            for (number, line) in source.code() {
                for ban in bans.iter().filter(|ban| names(line, &format!("crate::{ban}"))) {
                    faults.push(format!(
                        "{}:{number} step `{step}` names `crate::{ban}`: {}",
                        source.path,
                        line.trim()
                    ));
                }
            }
        }
    }
    report("arrows between folders", faults);
}

#[test]
fn pure_packages_forbid_unsafe_code() {
    for path in ["common/src/lib.rs", "gateway/routing/src/lib.rs", "transfer-agent/src/lib.rs"] {
        let text = std::fs::read_to_string(root().join(path)).expect("lib.rs");
        assert!(text.contains("#![forbid(unsafe_code)]"), "{path} must forbid unsafe code");
    }
}

const FILE_LINES: usize = 400;
const MAIN_LINES: usize = 100;
const MODULE_DEPTH: usize = 3;

/// Files that may be longer, with the reason. Empty is the goal.
const LONG_FILES: &[(&str, &str)] = &[];

#[test]
fn files_are_short_and_shallow() {
    let mut faults = Vec::new();
    for source in rust_sources().iter().filter(|s| !s.is_test()) {
        let Some((_, inner)) = source.path.split_once("src/") else { continue };
        let lines = inline_tests_start(&source.text).unwrap_or_else(|| source.text.lines().count());
        let limit = if inner == "main.rs" { MAIN_LINES } else { FILE_LINES };
        if lines > limit && !LONG_FILES.iter().any(|(path, _)| *path == source.path) {
            faults.push(format!(
                "{} has {lines} lines without its tests, limit {limit}: split it, or explain it in LONG_FILES",
                source.path
            ));
        }
        if inner.split('/').count() > MODULE_DEPTH {
            faults.push(format!("{} lies deeper than {MODULE_DEPTH} levels", source.path));
        }
        let stem = Path::new(inner).file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        if ["utils", "util", "helpers", "helper", "manager", "misc"].contains(&stem) {
            faults.push(format!("{}: `{stem}` says nothing; name the file for what it holds", source.path));
        }
    }
    for (path, _) in LONG_FILES {
        let lines = std::fs::read_to_string(root().join(path)).map_or(0, |text| text.lines().count());
        if lines <= FILE_LINES {
            faults.push(format!("{path} is no longer too long: take it off LONG_FILES"));
        }
    }
    report("file lengths, depth and names", faults);
}

/// Words that tie the repository to one machine or one registry. Written in halves so that this file does not match.
const FOREIGN: &[(&str, &str)] = &[
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("registry.npm", "js"),
    ("pypi", ".org"),
    ("files.python", "hosted"),
    ("static.rust", "-lang"),
];

#[test]
fn nothing_names_a_machine_or_a_registry() {
    let mut faults = Vec::new();
    for source in repository_files().iter().filter(|s| s.path != "Cargo.lock") {
        for (number, line) in source.text.lines().enumerate() {
            for (head, tail) in FOREIGN {
                let word = format!("{head}{tail}");
                if line.contains(&word) {
                    faults.push(format!("{}:{} contains {word}", source.path, number + 1));
                }
            }
        }
    }
    report("words that belong to one machine", faults);
}
