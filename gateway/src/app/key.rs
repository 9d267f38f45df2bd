//! The key of the block hashes.

use forebay_routing::block::HashKey;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Where a fresh key comes from; the kernel's generator, ready long before any service starts.
const RANDOM: &str = "/dev/urandom";

/// The key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("routing.hash_key_file: {path}: {source}; it must hold at least 32 random bytes")]
pub struct KeyError {
    /// File.
    path: PathBuf,
    /// What the system said.
    source: io::Error,
}

/// Reads the key from the first 32 bytes of `file`, or makes a fresh one.
pub(super) fn read(file: Option<&Path>) -> Result<HashKey, KeyError> {
    let path = file.unwrap_or_else(|| Path::new(RANDOM));
    let mut seed = [0; 32];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut seed));
    read.map_err(|source| KeyError { path: path.to_owned(), source })?;
    Ok(HashKey::derive(&seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_the_same_key_and_no_file_another_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("key");
        std::fs::write(&path, [7; 40]).expect("written");
        let id = |file: Option<&Path>| read(file).expect("a key").id();
        assert_eq!(id(Some(&path)), id(Some(&path)));
        assert_ne!(id(None), id(None));
        std::fs::write(&path, [7; 31]).expect("written");
        let error = read(Some(&path)).expect_err("too short").to_string();
        assert!(error.contains("at least 32 random bytes"), "{error}");
    }
}
