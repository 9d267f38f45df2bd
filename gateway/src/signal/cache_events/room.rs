//! How many feeds this process has file descriptors for.

use super::MAX_FEEDS;
use super::listener::{FEEDS_PER_CONTEXT, MAX_REPLAYS};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// File descriptors of one socket: its connection and its mailbox, which is a pair.
const FILES_PER_SOCKET: usize = 3;

/// Those of one libzmq context: its threads' epoll sets and mailboxes.
const FILES_PER_CONTEXT: usize = 8;

/// Those left to connections of clients and engines.
const FILES_FOR_OTHERS: usize = 512;

/// Replays of all listening threads at once.
const ALL_REPLAYS: usize = super::MAX_LISTENERS * MAX_REPLAYS;

/// Counts open feeds against what the process may open: libzmq aborts the process when it runs out of files.
#[derive(Clone)]
pub(super) struct Room {
    open: Arc<AtomicUsize>,
    limit: usize,
}

impl Room {
    /// Room within the limits of this process.
    pub(super) fn of_process() -> Self {
        Self { open: Arc::default(), limit: open_files_limit().map_or(MAX_FEEDS, feeds_of) }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes the place of one feed, if there is one.
    pub(super) fn take(&self) -> bool {
        let taken = self.open.fetch_add(1, Ordering::AcqRel) < self.limit;
        if !taken {
            self.give_back();
        }
        taken
    }

    pub(super) fn give_back(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Feeds for which `files` descriptors are enough.
fn feeds_of(files: usize) -> usize {
    let for_feeds = files.saturating_sub(FILES_FOR_OTHERS + ALL_REPLAYS * FILES_PER_SOCKET);
    let feeds = for_feeds * FEEDS_PER_CONTEXT / (FEEDS_PER_CONTEXT * FILES_PER_SOCKET + FILES_PER_CONTEXT);
    feeds.min(MAX_FEEDS)
}

/// How many files this process may open.
fn open_files_limit() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_known() {
        assert!(open_files_limit().is_some_and(|files| files > 64));
    }

    #[test]
    fn feeds_fit_into_the_files_there_are() {
        assert_eq!(feeds_of(256), 0);
        assert_eq!(feeds_of(32_000), MAX_FEEDS);
        assert!((6_000..6_500).contains(&feeds_of(20_000)), "{}", feeds_of(20_000));
    }

    #[test]
    fn room_is_counted() {
        let room = Room { open: Arc::default(), limit: 1 };
        assert!(room.take() && !room.take());
        room.give_back();
        assert!(room.take());
    }
}
