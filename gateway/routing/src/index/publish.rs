//! What readers and the writer of a shard share: atomics, and a pointer that the writer replaces while readers load it.
//!
//! Under `cfg(loom)` both are those of loom, so that a model checker can run readers and the writer in every order.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use std::sync::Arc;

/// What a reader loaded; alive as long as it is kept.
#[cfg(not(loom))]
pub(super) type Loaded<T> = arc_swap::Guard<Option<Arc<T>>>;

/// Like the guard of the other build it has no methods of its own, so that callers mean those of what it holds.
#[cfg(loom)]
#[derive(Debug)]
pub(super) struct Loaded<T>(Option<Arc<T>>);

#[cfg(loom)]
impl<T> std::ops::Deref for Loaded<T> {
    type Target = Option<Arc<T>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Holds one value that is replaced as a whole. Loading never waits and sees the old value or the new one.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct Published<T>(arc_swap::ArcSwapOption<T>);

#[cfg(not(loom))]
impl<T> Published<T> {
    pub(super) fn new(value: Option<Arc<T>>) -> Self {
        Self(arc_swap::ArcSwapOption::new(value))
    }

    pub(super) fn load(&self) -> Loaded<T> {
        self.0.load()
    }

    pub(super) fn store(&self, value: Option<Arc<T>>) {
        self.0.store(value);
    }
}

#[cfg(loom)]
#[derive(Debug)]
pub(super) struct Published<T>(loom::sync::RwLock<Option<Arc<T>>>);

#[cfg(loom)]
impl<T> Published<T> {
    pub(super) fn new(value: Option<Arc<T>>) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    pub(super) fn load(&self) -> Loaded<T> {
        Loaded(self.0.read().expect("nobody panics under it").clone())
    }

    pub(super) fn store(&self, value: Option<Arc<T>>) {
        *self.0.write().expect("nobody panics under it") = value;
    }
}
