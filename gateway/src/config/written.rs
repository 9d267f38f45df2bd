//! What was written, each value with the place it came from, before anything is known to make sense.
//!
//! A key is stored under the path of its row in [`super::table`], so an unknown key cannot get further than here. Scalars
//! of a later source replace those of an earlier one; a list given by flag or environment replaces the whole list.

use super::key::Raw;
use super::problem::{Origin, Problem};
use super::source::{Environment, Flags, SPECIAL};
use super::table::{self, KEYS, LISTS};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) raw: Raw,
    pub(super) origin: Origin,
}

/// One table of a list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) origin: Origin,
    pub(super) fields: BTreeMap<&'static str, Entry>,
}

/// Everything written in all sources.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    pub(super) scalars: BTreeMap<&'static str, Entry>,
    pub(super) lists: BTreeMap<&'static str, Vec<Item>>,
    /// Worth saying, not worth refusing.
    pub(super) notes: Vec<String>,
}

impl Written {
    /// Adds the file's keys.
    pub(super) fn read_toml(&mut self, path: &Arc<PathBuf>, text: &str, problems: &mut Vec<Problem>) {
        let place = |offset: usize| Origin::in_file(path, text, offset);
        let (document, faults) = DeTable::parse_recoverable(text);
        let broken = !faults.is_empty();
        for fault in faults {
            let origin = place(fault.span().map_or(0, |span| span.start));
            let what = format!("not TOML: {}; mend the syntax", fault.message().replace('\n', ", "));
            problems.push(Problem { origin, key: String::new(), what });
        }
        if broken {
            return; // What stands where is a guess then, and further complaints would be noise.
        }
        for (name, value) in document.get_ref() {
            let at = name.span().start;
            let section = name.get_ref().as_ref();
            match (LISTS.iter().find(|list| **list == section), value.get_ref()) {
                (Some(list), DeValue::Array(items)) => {
                    let read = items.iter().enumerate();
                    let items = read.filter_map(|(i, item)| read_item(list, i, item, &place, problems)).collect();
                    self.lists.insert(list, items);
                }
                (Some(list), _) => problems.push(Problem {
                    origin: place(at),
                    key: section.to_owned(),
                    what: format!("is a list; write [[{list}]] for each entry"),
                }),
                (None, DeValue::Table(fields)) if is_section(section) => {
                    read_fields(&format!("{section}."), section, fields, &place, problems, &mut self.scalars);
                }
                (None, _) if is_section(section) => problems.push(Problem {
                    origin: place(at),
                    key: section.to_owned(),
                    what: format!("is a section; write [{section}] and its keys below"),
                }),
                (None, _) => problems.push(unknown(section, "", place(at))),
            }
        }
    }

    /// Adds `FOREBAY_*`. Kubernetes sets variables of its own for a service called forebay; those pass in silence.
    pub(super) fn read_environment(&mut self, environment: &Environment, problems: &mut Vec<Problem>) {
        for (name, value) in &environment.0 {
            let origin = Origin::Environment(name.clone());
            match name.as_str() {
                special if SPECIAL.contains(&special) => {}
                "FOREBAY_WORKERS" => self.set_workers(&origin, value.split(',')),
                "FOREBAY_TOKENIZERS" => self.set_tokenizers(&origin, value.split(','), problems),
                other => match scalars().find(|path| table::variable(path) == other) {
                    Some(path) => _ = self.scalars.insert(path, Entry { raw: Raw::Loose(value.clone()), origin }),
                    None if other.starts_with("FOREBAY_SERVICE_") || other.starts_with("FOREBAY_PORT") => {}
                    None => {
                        let near = table::nearest(other, scalars().map(table::variable));
                        let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
                        self.notes.push(format!("environment {other} sets nothing that is known{hint}"));
                    }
                },
            }
        }
    }

    /// Adds the command line.
    pub(super) fn read_flags(&mut self, flags: &Flags, problems: &mut Vec<Problem>) {
        for (flag, path, value) in &flags.scalars {
            let origin = Origin::Flag(flag.clone());
            match scalars().find(|known| known == path) {
                Some(path) => _ = self.scalars.insert(path, Entry { raw: Raw::Loose(value.clone()), origin }),
                None => problems.push(unknown(path, "", origin)),
            }
        }
        if !flags.workers.is_empty() {
            self.set_workers(&Origin::Flag("--worker".to_owned()), flags.workers.iter().map(String::as_str));
        }
        if !flags.tokenizers.is_empty() {
            let origin = Origin::Flag("--tokenizer".to_owned());
            self.set_tokenizers(&origin, flags.tokenizers.iter().map(String::as_str), problems);
        }
    }

    fn set_workers<'a>(&mut self, origin: &Origin, urls: impl Iterator<Item = &'a str>) {
        let item = |url: &str| Item { origin: origin.clone(), fields: [loose("workers[].url", url, origin)].into() };
        self.lists.insert("workers", urls.map(str::trim).filter(|url| !url.is_empty()).map(item).collect());
    }

    fn set_tokenizers<'a>(
        &mut self,
        origin: &Origin,
        pairs: impl Iterator<Item = &'a str>,
        problems: &mut Vec<Problem>,
    ) {
        let mut items = Vec::new();
        for pair in pairs.map(str::trim).filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some((model, folder)) => items.push(Item {
                    origin: origin.clone(),
                    fields: [loose("models[].name", model, origin), loose("models[].tokenizer", folder, origin)].into(),
                }),
                None => problems.push(Problem {
                    origin: origin.clone(),
                    key: "models".to_owned(),
                    what: format!("\"{pair}\" has no \"=\"; write MODEL=FOLDER"),
                }),
            }
        }
        self.lists.insert("models", items);
    }
}

fn loose(path: &'static str, value: &str, origin: &Origin) -> (&'static str, Entry) {
    (path, Entry { raw: Raw::Loose(value.to_owned()), origin: origin.clone() })
}

fn read_item(
    list: &'static str,
    position: usize,
    item: &Spanned<DeValue<'_>>,
    place: &impl Fn(usize) -> Origin,
    problems: &mut Vec<Problem>,
) -> Option<Item> {
    let origin = place(item.span().start);
    let shown = format!("{list}[{position}]");
    let DeValue::Table(fields) = item.get_ref() else {
        let what = format!("is not a table; write [[{list}]] and its keys below");
        problems.push(Problem { origin, key: shown, what });
        return None;
    };
    let mut read = BTreeMap::new();
    read_fields(&format!("{list}[]."), &shown, fields, place, problems, &mut read);
    Some(Item { origin, fields: read })
}

/// Reads the keys of one table whose paths in the table of keys start with `prefix`; `shown` names it in errors.
fn read_fields(
    prefix: &str,
    shown: &str,
    fields: &DeTable<'_>,
    place: &impl Fn(usize) -> Origin,
    problems: &mut Vec<Problem>,
    into: &mut BTreeMap<&'static str, Entry>,
) {
    for (name, value) in fields {
        let path = format!("{prefix}{}", name.get_ref());
        match table::find(&path) {
            Some(key) => {
                let entry = Entry { raw: raw(value.get_ref()), origin: place(value.span().start) };
                into.insert(key.path, entry);
            }
            None => {
                let mut problem = unknown(&path, prefix, place(name.span().start));
                problem.key = format!("{shown}.{}", name.get_ref());
                problems.push(problem);
            }
        }
    }
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(n) => match i64::from_str_radix(n.as_str(), n.radix()) {
            Ok(number) => Raw::Integer(number.to_string()),
            Err(_) => Raw::Integer(n.as_str().to_owned()),
        },
        DeValue::Float(n) => Raw::Float(n.as_str().to_owned()),
        DeValue::Boolean(on) => Raw::Bool(*on),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Array(_) => Raw::Other("an array"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}

fn scalars() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.path).filter(|path| !path.contains("[]"))
}

fn is_section(name: &str) -> bool {
    scalars().any(|path| path.split_once('.').is_some_and(|(section, _)| section == name))
}

/// An unknown key, with the key that was probably meant: the same name elsewhere, else the nearest spelling.
fn unknown(path: &str, prefix: &str, origin: Origin) -> Problem {
    let leaf = path.rsplit('.').next().unwrap_or(path);
    let same_name = |key: &&str| key.rsplit('.').next() == Some(leaf);
    let paths = || KEYS.iter().map(|key| key.path);
    let sections = KEYS.iter().filter_map(|key| key.path.split('.').next()).map(|s| s.trim_end_matches("[]"));
    let meant = if prefix.is_empty() && !path.contains('.') {
        table::nearest(path, sections.map(str::to_owned)).or_else(|| paths().find(same_name).map(str::to_owned))
    } else {
        let siblings = paths().filter_map(|known| known.strip_prefix(prefix)).filter(|_| !prefix.is_empty());
        table::nearest(leaf, siblings.map(str::to_owned))
            .map(|near| format!("{prefix}{near}"))
            .or_else(|| paths().find(same_name).map(str::to_owned))
            .or_else(|| prefix.is_empty().then(|| table::nearest(path, paths().map(str::to_owned)))?)
    };
    let hint = match meant {
        Some(meant) => format!("did you mean {}?", meant.replace("[]", "")),
        None => "see `forebay check --reference` for all keys".to_owned(),
    };
    Problem { origin, key: path.to_owned(), what: format!("unknown key; {hint}") }
}
