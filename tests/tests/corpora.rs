//! Replays what the fuzzers found worth keeping (`fuzz/corpus/`) through the same checks, on stable and in every run.

#[path = "../../fuzz/src/checks.rs"]
#[expect(unreachable_pub, reason = "public in fuzz/, which shares the file")]
mod checks;

use std::path::Path;

/// A corpus smaller than that has lost its files.
const MIN_FILES: usize = 3;

#[test]
fn every_committed_input_passes_its_check() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let list = |folder: &Path| -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries.map(|entry| entry.expect("readable").path()).collect()
    };
    for folder in list(&corpus) {
        let name = folder.file_name().and_then(|name| name.to_str()).expect("text");
        assert!(checks::ALL.iter().any(|(target, _)| *target == name), "{name} is no target");
    }
    for (target, check) in checks::ALL {
        let files = list(&corpus.join(target));
        assert!(files.len() >= MIN_FILES, "{target} has {} files", files.len());
        for file in files {
            let bytes = std::fs::read(&file).expect("readable");
            let outcome = std::panic::catch_unwind(|| check(&bytes));
            assert!(outcome.is_ok(), "{} fails: see above", file.display());
        }
    }
}
