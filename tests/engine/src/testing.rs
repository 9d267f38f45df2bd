//! What the tests of this package share.

use std::path::PathBuf;

/// `.cache/tokenizers/NAME` of this checkout. `None` where it was not set up, unless `FOREBAY_REQUIRE=all` makes
/// every optional test mandatory.
#[expect(clippy::disallowed_methods, reason = "tests alone; says whether optional tests may be skipped")]
pub(crate) fn tokenizer_folder(name: &str) -> Option<PathBuf> {
    let start = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let found =
        start.ancestors().map(|up| up.join(".cache/tokenizers").join(name)).find(|p| p.join("tokenizer.json").exists());
    let required = std::env::var("FOREBAY_REQUIRE").is_ok_and(|value| value == "all");
    assert!(found.is_some() || !required, "FOREBAY_REQUIRE=all, but .cache/tokenizers/{name} is absent");
    found
}
