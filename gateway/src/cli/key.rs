//! `forebay key new`: makes an API key, shows it once, and the line that the keys file takes.

use super::{Exit, complain, say};
use crate::doors::keys::{KEY_BYTES, make};
use std::fs::File;
use std::io::Read as _;

/// The kernel's generator.
const RANDOM: &str = "/dev/urandom";

/// Makes a key for `tenant`. Standard output carries the line alone, so that it may be appended to the file; the key goes to
/// standard error.
pub fn new(tenant: &str, roles: &str) -> Exit {
    let mut random = [0; KEY_BYTES];
    if let Err(error) = File::open(RANDOM).and_then(|mut file| file.read_exact(&mut random)) {
        complain(&format!("{RANDOM}: {error}"));
        return Exit::Unavailable;
    }
    match make(tenant, roles, random) {
        Ok((key, line)) => {
            complain(&format!("the key, shown this once: {key}"));
            say(&line);
            Exit::Done
        }
        Err(what) => {
            complain(what);
            Exit::Usage
        }
    }
}
