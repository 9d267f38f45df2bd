//! The reference of the README, written from the table that parses. `make reference` puts it there; a test that runs the
//! binary holds the two against each other.

use super::key::{Fallback, Key};
use super::source::SPECIAL;
use super::table::{KEYS, LISTS};
use std::fmt::Write as _;

/// One table for each section: key, what may be written, default, whether a reload applies it, meaning.
pub fn markdown() -> String {
    let mut out = String::new();
    let mut section = "";
    for key in KEYS {
        let (head, leaf) = key.path.split_once('.').unwrap_or(("", key.path));
        if head != section {
            section = head;
            let name = head.trim_end_matches("[]");
            let title = if LISTS.contains(&name) { format!("[[{name}]]") } else { format!("[{name}]") };
            let break_before = if out.is_empty() { "" } else { "\n" };
            _ = write!(
                out,
                "{break_before}`{title}`\n\n| Key | Value | Default | Live | Meaning |\n|---|---|---|---|---|\n"
            );
        }
        let live = if key.live { "yes" } else { "restart" };
        let (value, default) = (key.kind.describe(), default_of(key));
        _ = writeln!(out, "| `{leaf}` | {value} | {default} | {live} | {} |", key.meaning);
    }
    _ = write!(
        out,
        "\nEvery key outside a list has a variable (`listen.address` is `FOREBAY_LISTEN_ADDRESS`) and the flag `--set KEY=VALUE`; \
         `FOREBAY_WORKERS` and `FOREBAY_TOKENIZERS` take the values of `--worker` and `--tokenizer`, separated by commas. `{}` names \
         the file and `{}` filters the log (`info`, `forebay=debug`). Flags win over the environment, that over the file. \"Live\" \
         keys apply when the file changes or on SIGHUP; a bad file keeps the old state and says why in the log, in `/status` and \
         in `forebay_config_reloads_total`.\n",
        SPECIAL[0], SPECIAL[1]
    );
    out
}

fn default_of(key: &Key) -> String {
    match key.fallback {
        Fallback::Is(text) => format!("`{text}`"),
        Fallback::Absent(meaning) => meaning.to_owned(),
        Fallback::Required => "required".to_owned(),
    }
}
