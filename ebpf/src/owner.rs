//! One process at a time: a lock on a file, which the kernel lets go when its holder dies.

use crate::error::{Error, Stage};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::Path;

/// Held for as long as it lives.
#[derive(Debug)]
pub struct Owner {
    _file: File,
}

impl Owner {
    /// Takes the lock at `path`, or says which process has it.
    pub fn take(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let failed = |error: &std::io::Error| Error::io(Stage::Owner, shown.clone(), error);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(|error| failed(&error))?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| failed(&error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let why = format!("process {} has it; one agent of a role serves a node", pid.trim());
                return Err(Error::new(Stage::Owner, shown, why));
            }
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
        }
        file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(|error| failed(&error))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("load.lock");
        let first = Owner::take(&path).unwrap();
        let refused = Owner::take(&path).unwrap_err();
        assert_eq!(refused.stage, Stage::Owner);
        assert!(refused.why.contains(&std::process::id().to_string()), "{}", refused.why);
        drop(first);
        Owner::take(&path).unwrap();
    }
}
