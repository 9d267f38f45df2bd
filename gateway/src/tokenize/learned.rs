//! Plain chats without running the template.
//!
//! For a chat of plain text messages (an optional system message, then user and assistant in turn, ending with the
//! user) nearly every template does one thing: it puts fixed strings between the contents. At start those strings are
//! learned by rendering marked contents at many lengths, and checked with other contents; requests of that shape are
//! then concatenated, which is several times faster than interpreting the template.
//!
//! That the template treats no *content* specially is read off its source: literals that are compared with something,
//! searched for or split at are *hazards*, and a content that holds one goes through the template. A template that
//! uses anything else on text (a filter or method beyond trimming and the like) is not learned at all. Samples of live
//! requests are rendered both ways; the first difference turns this off for the model.

use super::content::tags;
use super::json::RawText;
use super::messages;
use super::model::Chat;
use super::request;
use std::sync::atomic::{AtomicBool, Ordering};

/// Turns learned and checked; behaviour that starts later is for the live samples to find.
const TURNS: usize = 6;

/// Filters that either do not look at text or only strip its ends.
const FILTERS: &[&str] = &["trim", "tojson", "length", "list", "items", "string", "default", "safe", "first", "last"];

/// Methods likewise, and those whose arguments become hazards.
const METHODS: &[&str] = &["strip", "lstrip", "rstrip", "startswith", "endswith", "split", "get", "items"];

/// What a message is to the strings around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    System,
    FirstUser,
    OnlyUser,
    User,
    LastUser,
    Assistant,
}

const CLASSES: usize = 6;

/// A template's fixed strings.
#[derive(Debug)]
pub(crate) struct Learned {
    before: [Option<String>; CLASSES],
    between: [[Option<String>; CLASSES]; CLASSES],
    after: Option<String>,
    hazards: Vec<String>,
    /// First bytes of the hazards, at most three.
    hazard_firsts: Vec<u8>,
    /// White space at the ends of contents survives.
    keeps_ends: bool,
    disabled: AtomicBool,
}

impl Learned {
    /// Learns the default template of `with`; `None` where it is not a concatenation or cannot be seen to be one.
    pub(crate) fn learn(with: &Chat) -> Option<Self> {
        let chosen = with.templates.choose(false)?;
        if chosen.traits.reads_clock {
            return None;
        }
        let hazards = hazards(chosen.source)?;
        let mut hazard_firsts: Vec<u8> = hazards.iter().filter_map(|hazard| hazard.bytes().next()).collect();
        hazard_firsts.sort_unstable();
        hazard_firsts.dedup();
        if hazard_firsts.len() > 3 {
            return None;
        }
        let mut learned = Self {
            before: Default::default(),
            between: Default::default(),
            after: None,
            hazards,
            hazard_firsts,
            keeps_ends: true,
            disabled: AtomicBool::new(false),
        };
        for (system, turns) in shapes() {
            learned.absorb(with, system, turns)?;
        }
        if !learned.agrees(with, ENDS) {
            learned.keeps_ends = false;
        }
        learned.agrees(with, CONTENTS).then_some(learned)
    }

    /// Renders by concatenation; `None` for a shape or a content that was not learned.
    pub(crate) fn render(&self, messages: &[(&str, RawText<'_>)]) -> Option<String> {
        if self.disabled.load(Ordering::Relaxed) {
            return None;
        }
        let size: usize = messages.iter().map(|(_, content)| content.raw().len() + 64).sum();
        let mut out = String::with_capacity(size);
        let mut previous = None;
        for (index, (role, content)) in messages.iter().enumerate() {
            let class = class(messages, index, role)?;
            let glue = match previous {
                None => &self.before[class as usize],
                Some(previous) => &self.between[previous as usize][class as usize],
            };
            out.push_str(glue.as_deref()?);
            let start = out.len();
            content.push_to(&mut out)?;
            if !self.is_plain(&out[start..]) {
                return None;
            }
            previous = Some(class);
        }
        out.push_str(self.after.as_deref()?);
        Some(out)
    }

    /// Whether nothing has spoken against what was learned.
    pub(crate) fn is_used(&self) -> bool {
        !self.disabled.load(Ordering::Relaxed)
    }

    /// Stops using what was learned.
    pub(crate) fn disable(&self) {
        self.disabled.store(true, Ordering::Relaxed);
    }

    /// Whether the template treats `content` as it treated the marks.
    fn is_plain(&self, content: &str) -> bool {
        let at_ends = || content.starts_with(char::is_whitespace) || content.ends_with(char::is_whitespace);
        if content.is_empty() || (!self.keeps_ends && at_ends()) {
            return false;
        }
        let bytes = content.as_bytes();
        let hazard = |at: usize| self.hazards.iter().any(|hazard| bytes[at..].starts_with(hazard.as_bytes()));
        !match self.hazard_firsts.as_slice() {
            [] => false,
            [a] => memchr::memchr_iter(*a, bytes).any(hazard),
            [a, b] => memchr::memchr2_iter(*a, *b, bytes).any(hazard),
            [a, b, c, ..] => memchr::memchr3_iter(*a, *b, *c, bytes).any(hazard),
        }
    }

    /// Learns the strings of one shape, or finds them different from those of another.
    fn absorb(&mut self, with: &Chat, system: bool, turns: usize) -> Option<()> {
        let roles = roles(system, turns);
        let marks: Vec<String> = (0..roles.len()).map(|i| format!("Mark{i:02}Kram")).collect();
        let body = chat(&roles, |i| marks[i].clone());
        let text = request::render_plain(with, &body)?;
        let read = messages::read(&body, 0).ok()?;
        let messages = plain(&read)?;
        let mut rest = text.as_str();
        let mut previous = None;
        for (index, (role, _)) in messages.iter().enumerate() {
            let class = class(&messages, index, role)?;
            let (glue, after) = rest.split_once(marks[index].as_str())?;
            rest = after;
            let slot = match previous {
                None => &mut self.before[class as usize],
                Some(previous) => &mut self.between[previous as usize][class as usize],
            };
            same_or_set(slot, glue)?;
            previous = Some(class);
        }
        if marks.iter().any(|mark| rest.contains(mark.as_str())) {
            return None;
        }
        same_or_set(&mut self.after, rest)
    }

    /// Whether concatenation and template agree on chats of `contents`, wherever concatenation is willing.
    fn agrees(&self, with: &Chat, contents: &[&str]) -> bool {
        shapes().all(|(system, turns)| {
            let roles = roles(system, turns);
            (0..contents.len()).all(|shift| {
                let body = chat(&roles, |i| contents[(i + shift) % contents.len()].to_owned());
                let ours = messages::read(&body, 0).ok().and_then(|read| self.render(&plain(&read)?));
                ours.is_none() || ours == request::render_plain(with, &body)
            })
        })
    }
}

/// Contents of all kinds, no white space at the ends.
const CONTENTS: &[&str] = &[
    "x",
    "Hello, world!",
    "two\nlines",
    "a\n\n\nb  c\td",
    "Grüße 你好 🎉 مرحبا",
    "{{ x }} {% if y %} {# z #}",
    "quote \" and ' and \\ and \\n",
    "<b>html &amp; <i>more</i></b>",
    "None",
    "true",
    "123",
    "[1, 2]",
    "{\"k\": 1}",
    "user",
    "assistant:",
    "system\nuser",
    "#",
    "%s %d {0}",
    "e\u{301}\u{200b}!",
    "a somewhat longer text that goes on for more than a few words, to see that length makes no difference: one, two, \
     three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen, sixteen.",
];

/// Contents with white space at the ends.
const ENDS: &[&str] =
    &[" lead", "trail ", "\nline", "line\n", "\n\nx\n\n", "\ttab\t", " \r\n x \r\n ", "\u{a0}x\u{a0}", " "];

fn shapes() -> impl Iterator<Item = (bool, usize)> {
    [false, true].into_iter().flat_map(|system| (1..=TURNS).map(move |turns| (system, turns)))
}

fn roles(system: bool, turns: usize) -> Vec<&'static str> {
    let turns = (0..2 * turns - 1).map(|i| if i % 2 == 0 { "user" } else { "assistant" });
    system.then_some("system").into_iter().chain(turns).collect()
}

fn chat(roles: &[&str], content: impl Fn(usize) -> String) -> String {
    let messages = roles.iter().enumerate();
    let messages = messages.map(|(i, role)| serde_json::json!({"role": role, "content": content(i)}));
    serde_json::Value::from_iter(messages).to_string()
}

/// Role and content of every message, where all are plain.
pub(crate) fn plain<'a>(messages: &'a [messages::Message<'a>]) -> Option<Vec<(&'a str, RawText<'a>)>> {
    messages.iter().map(|message| Some((message.role(), message.plain()?))).collect()
}

/// Class of message `index`; `None` where the shape is not the learned one.
fn class(messages: &[(&str, RawText<'_>)], index: usize, role: &str) -> Option<Class> {
    let systems = usize::from(messages[0].0 == "system");
    let last = index + 1 == messages.len();
    match role {
        "system" if index == 0 && !last => Some(Class::System),
        "user" if index >= systems && (index - systems).is_multiple_of(2) => Some(match (index, last) {
            (0, true) => Class::OnlyUser,
            (0, false) => Class::FirstUser,
            (_, true) => Class::LastUser,
            _ => Class::User,
        }),
        "assistant" if index > systems && !(index - systems).is_multiple_of(2) && !last => Some(Class::Assistant),
        _ => None,
    }
}

fn same_or_set(slot: &mut Option<String>, text: &str) -> Option<()> {
    match slot {
        Some(known) => (known == text).then_some(()),
        None => {
            *slot = Some(text.to_owned());
            Some(())
        }
    }
}

/// Literals that a template may look for in a content; `None` where it does more with text than that.
fn hazards(source: &str) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for tag in tags(source) {
        if !uses_only_known(tag) {
            return None;
        }
        for (start, end) in literals(tag) {
            let literal = unescaped(&tag[start + 1..end]);
            let (before, after) = (tag[..start].trim_end(), tag[end + 1..].trim_start());
            if literal.is_empty() || !looked_for(before, after) {
                continue;
            }
            if literal.trim().is_empty() {
                return None;
            }
            found.push(literal);
        }
    }
    found.sort();
    found.dedup();
    Some(found)
}

/// Whether a literal between `before` and `after` may be compared with a content (and not only printed).
fn looked_for(before: &str, after: &str) -> bool {
    let subscript = before.ends_with('[') && after.starts_with(']');
    let compared = ["==", "!=", ">", "<", " in", "=", ",", "["].iter().any(|op| before.ends_with(op));
    let compares = ["==", "!=", ">", "<", "in ", "not in ", ",", "]"].iter().any(|op| after.starts_with(op));
    let role = ["==", "!="].iter().any(|op| {
        before.strip_suffix(op).is_some_and(|left| {
            let left = left.trim_end();
            ["role", "role']", "role\"]"].iter().any(|name| left.ends_with(name))
        })
    });
    let argument = before.ends_with('(') && !before.ends_with("strip(") && before.len() > 1 && {
        let name = before[..before.len() - 1].chars().next_back();
        name.is_some_and(|c| c.is_alphanumeric() || c == '_')
    };
    !subscript && !role && (compared || compares || argument)
}

/// Byte positions of the quotes of every string literal in a tag.
fn literals(tag: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, u8)> = None;
    let mut escaped = false;
    for (at, byte) in tag.bytes().enumerate() {
        match open {
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some((start, quote)) if byte == quote => {
                found.push((start, at));
                open = None;
            }
            None if byte == b'"' || byte == b'\'' => open = Some((at, byte)),
            _ => {}
        }
    }
    found
}

fn unescaped(literal: &str) -> String {
    let escapes = [("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\'", "'"), ("\\\"", "\""), ("\\\\", "\\")];
    escapes.iter().fold(literal.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Whether all filters and methods of a tag are known to leave the inside of texts alone, and no text is indexed or
/// measured.
fn uses_only_known(tag: &str) -> bool {
    let mut code = String::with_capacity(tag.len());
    let mut from = 0;
    for (start, end) in literals(tag) {
        code += &tag[from..=start];
        from = end;
    }
    code += &tag[from..];
    let name_at =
        |rest: &str| -> String { rest.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let filters = code.match_indices('|').all(|(at, _)| {
        let name = name_at(&code[at + 1..]);
        let measured = name == "length" && {
            let left = code[..at].trim_end();
            !["messages", "tools", "tool_calls", "documents"].iter().any(|list| left.ends_with(list))
        };
        FILTERS.contains(&name.as_str()) && !measured
    });
    let methods = code.match_indices('.').all(|(at, _)| {
        let name = name_at(&code[at + 1..]);
        let called = code[at + 1..].trim_start()[name.len()..].starts_with('(');
        !called || METHODS.contains(&name.as_str())
    });
    let indexed = ["content[", "content'][", "content\"][", "text["].iter().any(|use_| code.contains(use_));
    filters && methods && !indexed
}
