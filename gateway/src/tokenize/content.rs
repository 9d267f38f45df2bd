//! Whether a chat template takes message contents as text or as a list of parts.
//!
//! The engine decides by reading the template: one that loops over a message's `content` gets lists, any other gets
//! text, with the parts joined by line feeds. This is that reading, on the tags' text; where it errs, the parity check
//! against the engine tells.

/// Shape in which contents reach the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentFormat {
    /// One string; parts are joined by `\n`.
    Text,
    /// A list of `{"type": "text", "text": …}`.
    Parts,
}

/// A variable, or one attribute of it: what `messages[1:] | list` or `message['content']` read.
type Access<'a> = (&'a str, Option<&'a str>);

/// A `{% for %}` loop.
struct Loop<'a> {
    target: &'a str,
    iterated: Option<Access<'a>>,
    /// The iterated expression is a bare name.
    bare: bool,
    /// Index of the macro that it stands in.
    in_macro: Option<usize>,
}

/// A `{% macro %}` and the names of its parameters.
struct Macro<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
}

/// Everything of a template that matters here.
#[derive(Default)]
struct Outline<'a> {
    assigned: Vec<(&'a str, Option<Access<'a>>)>,
    loops: Vec<Loop<'a>>,
    macros: Vec<Macro<'a>>,
    expressions: Vec<&'a str>,
}

/// Reads the format off a template's source.
pub(crate) fn detect(source: &str) -> ContentFormat {
    let outline = outline(source);
    let lists = closure(&outline.assigned, "messages");
    let over_messages = |l: &&Loop<'_>| matches!(l.iterated, Some((name, None)) if lists.contains(&name));
    let items: Vec<&str> = outline.loops.iter().filter(over_messages).map(|l| l.target).collect();
    let is_content =
        |access: Option<Access<'_>>| matches!(access, Some((name, Some("content"))) if items.contains(&name));
    let loops_over_content = |l: &Loop<'_>| {
        let Some((name, None)) = l.iterated else {
            return is_content(l.iterated);
        };
        match l.in_macro {
            Some(index) => l.bare && takes_content(&outline, &outline.macros[index], name, &is_content),
            None => l.bare && name == "content",
        }
    };
    if outline.loops.iter().any(loops_over_content) { ContentFormat::Parts } else { ContentFormat::Text }
}

/// Every name that is assigned `root`, or a slice of it, directly or through others.
fn closure<'a>(assigned: &[(&'a str, Option<Access<'a>>)], root: &'a str) -> Vec<&'a str> {
    let mut names = vec![root];
    let mut next = 0;
    while let Some(name) = names.get(next).copied() {
        next += 1;
        for (target, access) in assigned {
            if *access == Some((name, None)) && !names.contains(target) {
                names.push(target);
            }
        }
    }
    names
}

/// Whether some call hands a message's content to `parameter` of `callee`.
fn takes_content(
    outline: &Outline<'_>,
    callee: &Macro<'_>,
    parameter: &str,
    is_content: &dyn Fn(Option<Access<'_>>) -> bool,
) -> bool {
    outline.expressions.iter().flat_map(|text| calls(text, callee.name)).any(|arguments| {
        split_top(arguments, ',').iter().enumerate().any(|(i, argument)| {
            match argument.split_once('=').filter(|(name, _)| is_name(name.trim())) {
                Some((name, value)) => name.trim() == parameter && is_content(access(value)),
                None => callee.parameters.get(i) == Some(&parameter) && is_content(access(argument)),
            }
        })
    })
}

/// The argument lists of all calls of `name` in an expression.
fn calls<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(name).filter_map(move |(at, _)| {
        let before = text[..at].chars().next_back();
        let rest = text[at + name.len()..].trim_start();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '.') || !rest.starts_with('(') {
            return None;
        }
        rest.get(1..closing(rest)?)
    })
}

fn outline(source: &str) -> Outline<'_> {
    let mut outline = Outline::default();
    let mut open_macro = None;
    for tag in tags(source) {
        outline.expressions.push(tag);
        let (word, rest) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
        let rest = rest.trim();
        match word {
            "for" => {
                let Some((target, iterated)) = rest.split_once(" in ") else { continue };
                let iterated = split_word(iterated, " if ").trim().trim_end_matches(" recursive");
                outline.loops.push(Loop {
                    target: target.trim(),
                    iterated: access(iterated),
                    bare: is_name(iterated.trim()),
                    in_macro: open_macro,
                });
            }
            "set" => {
                if let Some((target, value)) = rest.split_once('=') {
                    outline.assigned.push((target.trim(), access(value)));
                }
            }
            "macro" => {
                if let Some((name, parameters)) = rest.split_once('(') {
                    let parameters = split_top(parameters.trim_end_matches(')'), ',');
                    let parameters = parameters.iter().map(|p| p.split('=').next().unwrap_or(p).trim()).collect();
                    open_macro = Some(outline.macros.len());
                    outline.macros.push(Macro { name: name.trim(), parameters });
                }
            }
            "endmacro" => open_macro = None,
            _ => {}
        }
    }
    outline
}

/// Texts of all `{% %}` and `{{ }}` tags, trimmed, white-space marks off.
pub(crate) fn tags(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        let end = match rest.as_bytes().first() {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => {
                rest = rest.find("#}").map_or("", |end| &rest[end + 2..]);
                continue;
            }
            _ => continue,
        };
        let Some(length) = find_outside_strings(&rest[1..], end) else { break };
        let inner = &rest[1..=length];
        let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
        found.push(inner.strip_suffix(['-', '+']).unwrap_or(inner).trim());
        rest = &rest[length + 3..];
    }
    found
}

fn find_outside_strings(text: &str, needle: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if byte == b'"' || byte == b'\'' => quote = Some(byte),
            None if text.as_bytes()[at..].starts_with(needle.as_bytes()) => return Some(at),
            None => {}
        }
    }
    None
}

/// The part of `text` before `word` outside strings.
fn split_word<'a>(text: &'a str, word: &str) -> &'a str {
    find_outside_strings(text, word).map_or(text, |at| &text[..at])
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Offset of the bracket that closes the one at the start of `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_i32;
    let mut quote = None;
    for (at, char) in text.char_indices() {
        match (quote, char) {
            (Some(open), _) if char == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(char),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Splits at `separator` outside brackets and strings.
fn split_top(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth, mut quote) = (0, 0_i32, None);
    for (at, char) in text.char_indices() {
        match (quote, char) {
            (Some(open), _) if char == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(char),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            (None, _) if char == separator && depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + char.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// What an expression reads, where it is a variable or one attribute of it with slices, filters or tests applied.
fn access(expression: &str) -> Option<Access<'_>> {
    let expression = expression.trim();
    let end = expression.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(expression.len());
    let (name, mut rest) = expression.split_at(end);
    if !is_name(name) {
        return None;
    }
    let mut key = None;
    loop {
        rest = rest.trim_start();
        match rest.chars().next() {
            None => return Some((name, key)),
            Some('.') => {
                let end = rest[1..].find(|c: char| !c.is_alphanumeric() && c != '_').map_or(rest.len(), |at| at + 1);
                if key.replace(&rest[1..end]).is_some() {
                    return None;
                }
                rest = &rest[end..];
            }
            Some('[') => {
                let end = closing(rest)?;
                let inner = rest[1..end].trim();
                let quoted = inner.strip_prefix(['"', '\'']).and_then(|text| text.strip_suffix(['"', '\'']));
                match quoted {
                    Some(text) if key.is_none() => key = Some(text),
                    None if inner.contains(':') => {}
                    _ => return None,
                }
                rest = &rest[end + 1..];
            }
            Some('|') => {
                rest = rest[1..].trim_start();
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                rest = &rest[end..];
                if rest.starts_with('(') {
                    rest = &rest[closing(rest)? + 1..];
                }
            }
            _ if rest.starts_with("is ") => return Some((name, key)),
            _ => return None,
        }
    }
}
