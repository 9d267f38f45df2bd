//! The command line: exit codes, the place of a fault in the file, and the README's reference.

use forebay_tests::process::{Failure, binary, repository};
use forebay_tests::scene::folder;
use std::process::{Command, Output};

const EXIT_USAGE: i32 = 64;

fn check(configuration: &str) -> Result<Output, Failure> {
    let folder = folder()?;
    let file = folder.path().join("forebay.toml");
    std::fs::write(&file, configuration).map_err(|e| Failure(e.to_string()))?;
    Command::new(binary("forebay")?).arg("check").arg(&file).output().map_err(|e| Failure(e.to_string()))
}

/// The file is refused with exit code 64, and the message names `place` and `word`.
fn assert_refused(configuration: &str, place: &str, word: &str) -> Result<(), Failure> {
    let output = check(configuration)?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(EXIT_USAGE), "{text}");
    assert!(text.contains(&format!("forebay.toml:{place}")), "{place} is not named: {text}");
    assert!(text.contains(word), "{word} is not named: {text}");
    Ok(())
}

#[test]
fn a_good_file_passes() -> Result<(), Failure> {
    let output = check("[listen]\naddress = \"127.0.0.1:8080\"\n[[workers]]\nurl = \"http://127.0.0.1:8000\"\n")?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

#[test]
fn an_unknown_key_is_refused() -> Result<(), Failure> {
    assert_refused("[listen]\naddress = \"127.0.0.1:8080\"\nmax_conections = 5\n", "3:1", "max_connections")
}

#[test]
fn a_bad_unit_is_refused() -> Result<(), Failure> {
    assert_refused("[upstream]\nconnect_timeout = \"5 parsecs\"\n", "2:19", "parsecs")
}

#[test]
fn a_duplicate_worker_is_refused() -> Result<(), Failure> {
    let twice = "[[workers]]\nurl = \"http://127.0.0.1:8000\"\n[[workers]]\nurl = \"http://127.0.0.1:8000\"\n";
    assert_refused(twice, "4:7", "http://127.0.0.1:8000")
}

#[test]
fn serve_refuses_the_same_file() -> Result<(), Failure> {
    let folder = folder()?;
    let file = folder.path().join("forebay.toml");
    std::fs::write(&file, "[routing]\npolicy = \"astrology\"\n").map_err(|e| Failure(e.to_string()))?;
    let output = Command::new(binary("forebay")?).args(["serve", "--config"]).arg(&file).output();
    let output = output.map_err(|e| Failure(e.to_string()))?;
    assert_eq!(output.status.code(), Some(EXIT_USAGE), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("forebay.toml:2:10"), "{output:?}");
    Ok(())
}

#[test]
fn the_readme_holds_the_reference() -> Result<(), Failure> {
    let output = Command::new(binary("forebay")?).args(["check", "--reference"]).output();
    let output = output.map_err(|e| Failure(e.to_string()))?;
    assert!(output.status.success(), "{output:?}");
    let reference = String::from_utf8_lossy(&output.stdout);
    let readme = std::fs::read_to_string(repository().join("README.md")).map_err(|e| Failure(e.to_string()))?;
    let (start, end) = ("<!-- config -->\n", "<!-- /config -->");
    let inside = readme.split_once(start).and_then(|(_, rest)| rest.split_once(end)).map(|(inside, _)| inside.trim());
    assert_eq!(inside, Some(reference.trim()), "README.md is out of date; run `make reference`");
    Ok(())
}
