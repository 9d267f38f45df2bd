//! How the resolver reads: one key at a time by the table, keeping every fault.

use super::key::{Fallback, Raw, Value};
use super::networks::Hosts;
use super::problem::{Origin, Problem};
use super::resolved::AccessLog;
use super::table;
use super::written::{Entry, Item, Written};
use forebay_routing::Policy;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Reads keys by the table and keeps every fault. After a fault it goes on with the default, so that one run finds
/// everything; the result is dropped then.
pub(super) struct Reader<'a> {
    pub(super) written: &'a Written,
    pub(super) problems: Vec<Problem>,
    pub(super) effective: BTreeMap<&'static str, Option<Value>>,
    pub(super) notes: Vec<String>,
}

impl<'a> Reader<'a> {
    fn value(&mut self, path: &'static str) -> Option<Value> {
        let value = value_of(path, path, self.written.scalars.get(path), &Origin::Default, &mut self.problems);
        self.effective.insert(path, value.clone());
        value
    }

    pub(super) fn list<T>(&mut self, name: &'static str, read: impl Fn(&mut Fields<'_, 'a>) -> Option<T>) -> Vec<T> {
        let items = self.written.lists.get(name).map_or(&[][..], Vec::as_slice);
        let read_one = |(position, item): (usize, &'a Item)| {
            read(&mut Fields { list: name, position, item, problems: &mut self.problems })
        };
        items.iter().enumerate().filter_map(read_one).collect()
    }

    pub(super) fn address(&mut self, path: &'static str) -> SocketAddr {
        match self.value(path) {
            Some(Value::Address(address)) => address,
            _ => SocketAddr::from(([127, 0, 0, 1], 0)),
        }
    }

    pub(super) fn count<T: TryFrom<u64> + Default>(&mut self, path: &'static str) -> T {
        self.count_if_set(path).unwrap_or_default()
    }

    pub(super) fn count_if_set<T: TryFrom<u64>>(&mut self, path: &'static str) -> Option<T> {
        self.value(path).and_then(narrow)
    }

    pub(super) fn time(&mut self, path: &'static str) -> Duration {
        match self.value(path) {
            Some(Value::Time(time)) => time,
            _ => Duration::ZERO,
        }
    }

    pub(super) fn share(&mut self, path: &'static str) -> f64 {
        match self.value(path) {
            Some(Value::Share(share)) => share,
            _ => 0.0,
        }
    }

    pub(super) fn switch(&mut self, path: &'static str) -> bool {
        matches!(self.value(path), Some(Value::Switch(true)))
    }

    pub(super) fn policy(&mut self, path: &'static str) -> Policy {
        match self.value(path) {
            Some(Value::Policy(policy)) => policy,
            _ => Policy::default(),
        }
    }

    /// One of its key's words.
    pub(super) fn word(&mut self, path: &'static str) -> &'static str {
        match self.value(path) {
            Some(Value::Word(word)) => word,
            _ => "",
        }
    }

    pub(super) fn hosts(&mut self, path: &'static str) -> Hosts {
        match self.value(path) {
            Some(Value::Hosts(hosts)) => hosts,
            _ => Hosts::default(),
        }
    }

    pub(super) fn path_if_set(&mut self, path: &'static str) -> Option<PathBuf> {
        match self.value(path) {
            Some(Value::Path(path)) => Some(path),
            _ => None,
        }
    }

    pub(super) fn access_log(&mut self, path: &'static str) -> AccessLog {
        match self.value(path) {
            Some(Value::AccessLog(log)) => log,
            _ => AccessLog::Off,
        }
    }

    /// A relation that `path` violates, unless the key itself is already at fault.
    pub(super) fn fault(&mut self, path: &'static str, what: String) {
        if self.problems.iter().any(|problem| problem.key == path) {
            return;
        }
        let origin = self.written.scalars.get(path).map_or(Origin::Default, |entry| entry.origin.clone());
        self.problems.push(Problem { origin, key: path.to_owned(), what });
    }

    pub(super) fn item_fault(&mut self, list: &'static str, position: usize, field: &str, what: String) {
        let items = self.written.lists.get(list).map_or(&[][..], Vec::as_slice);
        let Some(item) = items.get(position) else { return };
        let entry = item.fields.get(format!("{list}[].{field}").as_str());
        let origin = entry.map_or(&item.origin, |entry| &entry.origin).clone();
        self.problems.push(Problem { origin, key: format!("{list}[{position}].{field}"), what });
    }

    /// Two entries of `list` must not agree in `field`, by its normal spelling.
    pub(super) fn unique(&mut self, list: &'static str, field: &'static str) {
        let Some(key) = table::find(&format!("{list}[].{field}")) else { return };
        let mut first: BTreeMap<String, Origin> = BTreeMap::new();
        for (position, item) in self.written.lists.get(list).into_iter().flatten().enumerate() {
            let Some(entry) = item.fields.get(key.path) else { continue };
            let Ok(Value::Text(text)) = key.kind.read(&entry.raw) else { continue };
            match first.get(&text) {
                Some(earlier) => {
                    let what = format!("{text} is listed twice, first at {}; remove one", earlier.brief());
                    self.item_fault(list, position, field, what);
                }
                None => _ = first.insert(text, entry.origin.clone()),
            }
        }
    }
}

/// Reads the keys of one table of a list; `None` where a key without a usable value leaves nothing to build.
pub(super) struct Fields<'p, 'a> {
    list: &'static str,
    position: usize,
    item: &'a Item,
    problems: &'p mut Vec<Problem>,
}

impl Fields<'_, '_> {
    fn value(&mut self, path: &'static str) -> Option<Value> {
        let leaf = path.rsplit('.').next().unwrap_or(path);
        let shown = format!("{}[{}].{leaf}", self.list, self.position);
        value_of(path, &shown, self.item.fields.get(path), &self.item.origin, self.problems)
    }

    pub(super) fn text(&mut self, path: &'static str) -> Option<String> {
        match self.value(path) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn path(&mut self, path: &'static str) -> Option<PathBuf> {
        match self.value(path) {
            Some(Value::Path(path)) => Some(path),
            _ => None,
        }
    }

    pub(super) fn policy(&mut self, path: &'static str) -> Option<Policy> {
        match self.value(path) {
            Some(Value::Policy(policy)) => Some(policy),
            _ => None,
        }
    }

    pub(super) fn count<T: TryFrom<u64>>(&mut self, path: &'static str) -> Option<T> {
        self.value(path).and_then(narrow)
    }

    pub(super) fn names(&mut self, path: &'static str) -> Vec<String> {
        match self.value(path) {
            Some(Value::Names(names)) => names,
            _ => Vec::new(),
        }
    }

    pub(super) fn switch(&mut self, path: &'static str) -> bool {
        matches!(self.value(path), Some(Value::Switch(true)))
    }

    pub(super) fn time(&mut self, path: &'static str) -> Option<Duration> {
        match self.value(path) {
            Some(Value::Time(time)) => Some(time),
            _ => None,
        }
    }
}

/// The value written in `entry`, else the fallback. `shown` names the key and `owner` the place of what should hold it.
fn value_of(
    path: &'static str,
    shown: &str,
    entry: Option<&Entry>,
    owner: &Origin,
    problems: &mut Vec<Problem>,
) -> Option<Value> {
    let key = table::find(path).expect("tests::every_key_is_read proves that each path read here has its row");
    let (raw, origin) = match (entry, key.fallback) {
        (Some(entry), _) => (entry.raw.clone(), &entry.origin),
        (None, Fallback::Is(text)) => (Raw::Loose(text.to_owned()), &Origin::Default),
        (None, Fallback::Absent(_)) => return None,
        (None, Fallback::Required) => {
            let what = format!("is missing; write {}", key.kind.describe());
            problems.push(Problem { origin: owner.clone(), key: shown.to_owned(), what });
            return None;
        }
    };
    match key.kind.read(&raw) {
        Ok(value) => Some(value),
        Err(what) => {
            problems.push(Problem { origin: origin.clone(), key: shown.to_owned(), what });
            None
        }
    }
}

/// A count in the type that holds it; the table's bounds are those of the type or tighter.
fn narrow<T: TryFrom<u64>>(value: Value) -> Option<T> {
    match value {
        Value::Number(number) => T::try_from(number).ok(),
        _ => None,
    }
}
