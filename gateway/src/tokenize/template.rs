//! Chat templates, rendered as the engines render them.
//!
//! The engines use Jinja with `trim_blocks`, `lstrip_blocks`, loop controls, Python's string methods, and a `tojson`
//! that is `json.dumps(ensure_ascii=False)`. A template is code from a model's maker: it runs under a fuel limit, with
//! no loader and no access to anything but its arguments.

use super::content::{self, ContentFormat};
use super::python::{JsonStyle, write_float, write_json};
use crate::clock;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use std::collections::BTreeMap;

/// Instructions (and 64-byte units of text) per rendering: some 0.2 s. A 4 MiB prompt copied ten times costs 0.7 M.
const FUEL: u64 = 10_000_000;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Chat templates of one model, compiled.
#[derive(Debug)]
pub(crate) struct Templates {
    environment: Environment<'static>,
    known: BTreeMap<String, (Traits, String)>,
}

/// What the engine reads off a template's source before it renders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traits {
    /// Shape in which message contents are handed over.
    pub(crate) format: ContentFormat,
    /// Whether it names the `developer` role; otherwise developer messages become system messages.
    pub(crate) developer_role: bool,
    /// Whether what it renders depends on the time of day.
    pub(crate) reads_clock: bool,
    /// Whether it fails on a system message between others.
    pub(crate) system_first: bool,
}

/// One template, chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen<'a> {
    name: &'a str,
    /// Its source.
    pub(crate) source: &'a str,
    /// Its traits.
    pub(crate) traits: Traits,
}

impl Templates {
    /// Compiles `sources` (name → Jinja).
    pub(crate) fn compile(sources: BTreeMap<String, String>) -> Result<Self, Error> {
        let mut environment = environment()?;
        let mut known = BTreeMap::new();
        for (name, source) in sources {
            let source = without_generation_tags(&source);
            let traits = Traits {
                format: content::detect(&source),
                developer_role: source.contains("\"developer\"") || source.contains("'developer'"),
                reads_clock: source.contains("strftime_now"),
                system_first: fails_on_inline_system(&source),
            };
            environment.add_template_owned(name.clone(), source.clone())?;
            known.insert(name, (traits, source));
        }
        Ok(Self { environment, known })
    }

    /// The template for a request: `tool_use` where there is one and tools are given, else the default.
    pub(crate) fn choose(&self, with_tools: bool) -> Option<Chosen<'_>> {
        let names = if with_tools { &[TOOL_USE, DEFAULT][..] } else { &[DEFAULT][..] };
        let (name, (traits, source)) = names.iter().find_map(|name| self.known.get_key_value(*name))?;
        Some(Chosen { name, source, traits: *traits })
    }

    /// Whether some template fails on a system message between others, with none of the engine's functions at hand: that
    /// is how the engine decides to move an Anthropic conversation's system messages to the front.
    pub(crate) fn wants_system_first(&self) -> bool {
        self.known.values().any(|(traits, _)| traits.system_first)
    }

    /// Renders with `arguments`.
    pub(crate) fn render(&self, chosen: Chosen<'_>, arguments: Value) -> Result<String, Error> {
        self.environment.get_template(chosen.name)?.render(arguments)
    }
}

/// See [`Templates::wants_system_first`].
fn fails_on_inline_system(source: &str) -> bool {
    let render = || -> Result<String, Error> {
        let environment = bare_environment()?;
        let message = |role: &str| Value::from_pairs([("role", Value::from(role)), ("content", Value::from("t"))]);
        let messages: Vec<Value> = ["system", "user", "system", "user"].into_iter().map(message).collect();
        let pairs = [("messages", Value::from(messages)), ("add_generation_prompt", Value::from(false))];
        environment.template_from_str(source)?.render(Value::from_pairs(pairs))
    };
    render().is_err()
}

/// Jinja as the engines set it up.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = bare_environment()?;
    environment.set_formatter(print);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    Ok(environment)
}

/// Jinja without anything of the engines' own.
fn bare_environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    Ok(environment)
}

/// `{{ value }}`: floats as Python prints them.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        let mut text = String::new();
        write_float(&mut text, f64::try_from(value.clone())?);
        return out.write_str(&text).map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write"));
    }
    minijinja::escape_formatter(out, state, value)
}

/// `json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let mut style = JsonStyle::default();
    if let Some(indent) = options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none()) {
        style.indent = Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(32)),
        });
        ",".clone_into(&mut style.item_separator);
    }
    if let Some(separators) = options.get::<Option<Value>>("separators")?.filter(|pair| !pair.is_none()) {
        let separators: Vec<String> = separators.try_iter()?.map(|text| text.to_string()).collect();
        let [item, key] = separators.try_into().map_err(|_| bad_argument("separators must be a pair"))?;
        (style.item_separator, style.key_separator) = (item, key);
    }
    style.ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut text = String::new();
    write_json(&mut text, value, &style, 0)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(Value::from(text))
}

fn bad_argument(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Marks of the trainers' "generated here" regions mean nothing when serving: they become plain blocks.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let words = tag[2..end].trim_matches('-').trim();
        match words {
            "generation" => out.push_str(&tag.replace(words, "if true")),
            "endgeneration" => out.push_str(&tag.replace(words, "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `datetime.now().strftime(format)`, in UTC.
fn strftime_now(format: String) -> Result<String, Error> {
    #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970 fit")]
    let seconds = clock::unix_seconds() as i64;
    strftime(&format, seconds).ok_or_else(|| bad_argument("strftime_now: directive not supported"))
}

/// Formats seconds since the epoch; `None` for a directive that is not among the dates and times templates print.
pub(crate) fn strftime(format: &str, seconds: i64) -> Option<String> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let month_name = MONTHS[usize::try_from(month - 1).ok()?];
    let day_name = DAYS[usize::try_from(days.rem_euclid(7)).ok()?];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        out += &match chars.next()? {
            'Y' => format!("{year:04}"),
            'y' => format!("{:02}", year.rem_euclid(100)),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => day_name.to_owned(),
            'a' => day_name[..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{year:04}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            '%' => "%".to_owned(),
            _ => return None,
        };
    }
    Some(out)
}

/// Days since 1970-01-01 → (year, month, day), by counting in 400-year eras that start in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}
