//! The shape of one key: what may be written there, what it defaults to, what it means.

use super::networks::Hosts;
use super::unit::{read_duration, read_size, show_duration, show_size};
use super::{AccessLog, POLICIES};
use crate::discover::WorkerUrl;
use crate::signal::cache_events::Attach;
use forebay_routing::Policy;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// One documented key.
pub struct Key {
    /// `section.name`; `list[].name` inside a list of tables.
    pub path: &'static str,
    /// What may be written.
    pub kind: Kind,
    /// What holds when nothing is written.
    pub fallback: Fallback,
    /// Whether a changed file applies without a restart.
    pub live: bool,
    /// For the reference: one sentence.
    pub meaning: &'static str,
}

/// What holds when nothing is written.
#[derive(Clone, Copy)]
pub enum Fallback {
    /// This text, read as the key's kind.
    Is(&'static str),
    /// Nothing, which means this.
    Absent(&'static str),
    /// There is none: it must be written.
    Required,
}

/// What may be written at a key. Bounds are inclusive and part of the error text.
#[derive(Clone, Copy)]
pub enum Kind {
    /// `"127.0.0.1:8080"`.
    Address,
    /// A whole number.
    Count(u64, u64),
    /// Bytes with a unit, `"64MiB"`.
    Size(u64, u64),
    /// Time with a unit, `"5s"`; bounds in ms.
    Time(u64, u64),
    /// 0 to 1.
    Share,
    /// `true` or `false`.
    Switch,
    /// Non-empty text.
    Name,
    /// A path.
    Path,
    /// `"http://host:port"`.
    Url,
    /// `"host:port"`.
    HostPort,
    /// `"tcp://host:port"`.
    ZmqEndpoint,
    /// One of the policies.
    Policy,
    /// `"off"`, `"stdout"`, `"stderr"` or a path.
    AccessLog,
    /// Networks, names and the words that stand for some.
    Hosts,
    /// Names with commas between them.
    Names,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// A value as written, before its key's kind is known to fit.
#[derive(Clone, Debug, PartialEq)]
pub enum Raw {
    /// A string.
    Text(String),
    /// An integer, with its digits as written.
    Integer(String),
    /// A float.
    Float(String),
    /// A boolean.
    Bool(bool),
    /// A table, an array or a date: fits no key. Holds TOML's name for it.
    Other(&'static str),
    /// From a flag, the environment or the table of defaults: text that stands for any scalar.
    Loose(String),
}

/// A value that fits its key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Socket address.
    Address(SocketAddr),
    /// Count or bytes.
    Number(u64),
    /// Time.
    Time(Duration),
    /// 0 to 1.
    Share(f64),
    /// Boolean.
    Switch(bool),
    /// Name, URL, endpoint.
    Text(String),
    /// Path.
    Path(PathBuf),
    /// Policy.
    Policy(Policy),
    /// Access log.
    AccessLog(AccessLog),
    /// Networks and names.
    Hosts(Hosts),
    /// Names.
    Names(Vec<String>),
    /// One of its kind's words.
    Word(&'static str),
}

impl Kind {
    /// Reads `raw`, or says what is wrong and what to write.
    pub fn read(self, raw: &Raw) -> Result<Value, String> {
        match self {
            Self::Count(min, max) => {
                let digits = raw.digits().ok_or_else(|| raw.mismatch(self))?;
                let count = digits.parse::<u64>().map_err(|_| format!("{digits} is not {}", self.describe()))?;
                within(count, min, max, |n| n.to_string()).map(Value::Number)
            }
            Self::Size(min, max) => {
                let text = raw.text().ok_or_else(|| raw.mismatch(self))?;
                within(read_size(text)?, min, max, show_size).map(Value::Number)
            }
            Self::Time(min, max) => {
                let text = raw.text().ok_or_else(|| raw.mismatch(self))?;
                let time = read_duration(text)?;
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                within(ms, min, max, |ms| show_duration(Duration::from_millis(ms))).map(|_| Value::Time(time))
            }
            Self::Share => {
                let digits = raw.digits().ok_or_else(|| raw.mismatch(self))?;
                match digits.parse::<f64>() {
                    Ok(share) if (0.0..=1.0).contains(&share) => Ok(Value::Share(share)),
                    _ => Err(format!("{digits} is not {}", self.describe())),
                }
            }
            Self::Switch => match raw {
                Raw::Bool(on) => Ok(Value::Switch(*on)),
                Raw::Loose(text) if text == "true" => Ok(Value::Switch(true)),
                Raw::Loose(text) if text == "false" => Ok(Value::Switch(false)),
                _ => Err(raw.mismatch(self)),
            },
            _ => self.read_text(raw.text().ok_or_else(|| raw.mismatch(self))?),
        }
    }

    fn read_text(self, text: &str) -> Result<Value, String> {
        let unfit = || format!("\"{text}\" is not {}", self.describe());
        if text.is_empty() {
            return Err(unfit());
        }
        match self {
            Self::Address => text.parse().map(Value::Address).map_err(|_| unfit()),
            Self::Url => read_url(text).map(Value::Text),
            Self::HostPort => is_host_port(text).then(|| Value::Text(text.to_owned())).ok_or_else(unfit),
            Self::ZmqEndpoint => read_endpoint(text).map(Value::Text),
            Self::Policy => POLICIES
                .iter()
                .find(|(name, _)| *name == text)
                .map(|(_, policy)| Value::Policy(*policy))
                .ok_or_else(unfit),
            Self::Path => Ok(Value::Path(PathBuf::from(text))),
            Self::Hosts => Hosts::parse(text).map(Value::Hosts),
            Self::Names => read_names(text).map(Value::Names).ok_or_else(unfit),
            Self::OneOf(words) => {
                words.iter().find(|word| **word == text).map(|word| Value::Word(word)).ok_or_else(unfit)
            }
            Self::AccessLog => Ok(Value::AccessLog(match text {
                "off" => AccessLog::Off,
                "stdout" => AccessLog::Stdout,
                "stderr" => AccessLog::Stderr,
                path => AccessLog::File(PathBuf::from(path)),
            })),
            _ => Ok(Value::Text(text.to_owned())),
        }
    }

    /// For errors and the reference: `a duration from 1ms to 1h, such as "5s"`.
    pub fn describe(self) -> String {
        match self {
            Self::Address => "an address, such as \"127.0.0.1:8080\"".to_owned(),
            Self::Count(0, u64::MAX) => "a whole number".to_owned(),
            Self::Count(min, max) => format!("a whole number from {min} to {max}"),
            Self::Size(min, max) => format!("a size from {} to {}, such as \"64MiB\"", show_size(min), show_size(max)),
            Self::Time(min, max) => {
                let show = |ms| show_duration(Duration::from_millis(ms));
                format!("a duration from {} to {}, such as \"5s\"", show(min), show(max))
            }
            Self::Share => "a number from 0 to 1, such as 0.1".to_owned(),
            Self::Switch => "true or false".to_owned(),
            Self::Name => "text".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::Url => "a URL, such as \"http://10.0.0.1:8000\"".to_owned(),
            Self::HostPort => "\"host:port\"".to_owned(),
            Self::ZmqEndpoint => "an endpoint, such as \"tcp://10.0.0.1:5557\"".to_owned(),
            Self::Policy => {
                let names: Vec<String> = POLICIES.iter().map(|(name, _)| format!("\"{name}\"")).collect();
                format!("one of {}", names.join(", "))
            }
            Self::AccessLog => "\"off\", \"stdout\", \"stderr\" or a path".to_owned(),
            Self::OneOf(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("one of {}", words.join(", "))
            }
            Self::Names => "names, such as \"fast, small\"".to_owned(),
            Self::Hosts => "networks and names, such as \"10.0.0.0/8, *.gpu.lan\"".to_owned(),
        }
    }
}

impl Value {
    /// As it might be written.
    pub fn show(&self) -> String {
        match self {
            Self::Address(address) => address.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Time(time) => show_duration(*time),
            Self::Share(share) => share.to_string(),
            Self::Switch(on) => on.to_string(),
            Self::Text(text) => text.clone(),
            Self::Path(path) => path.display().to_string(),
            Self::Policy(policy) => super::policy_name(*policy).to_owned(),
            Self::AccessLog(log) => format!("{log:?}").to_ascii_lowercase(),
            Self::Hosts(hosts) => hosts.to_string(),
            Self::Names(names) => names.join(", "),
            Self::Word(word) => (*word).to_owned(),
        }
    }
}

impl Raw {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Loose(text) => Some(text),
            _ => None,
        }
    }

    fn digits(&self) -> Option<&str> {
        match self {
            Self::Integer(text) | Self::Float(text) | Self::Loose(text) => Some(text),
            _ => None,
        }
    }

    /// The value is of another type than `kind` takes.
    fn mismatch(&self, kind: Kind) -> String {
        match (self, kind) {
            (Self::Integer(n), Kind::Time(..)) => format!("{n} has no unit; write \"{n}s\" or \"{n}ms\""),
            (Self::Integer(n), Kind::Size(..)) => format!("{n} has no unit; write \"{n}B\" or \"{n}MiB\""),
            (Self::Text(text), Kind::Count(..) | Kind::Share | Kind::Switch) => {
                format!("a string stands where {} belongs; write {text} without quotes", kind.describe())
            }
            _ => format!("{} stands where {} belongs", self.type_name(), kind.describe()),
        }
    }

    fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Loose(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::Other(name) => name,
        }
    }
}

fn within(n: u64, min: u64, max: u64, show: impl Fn(u64) -> String) -> Result<u64, String> {
    if (min..=max).contains(&n) {
        return Ok(n);
    }
    Err(format!("{} is out of bounds; write {} to {}", show(n), show(min), show(max)))
}

/// Names without space around them; `None` when one is empty or occurs twice.
fn read_names(text: &str) -> Option<Vec<String>> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let fits = |(at, name): (usize, &String)| !name.is_empty() && !names[..at].contains(name);
    names.iter().enumerate().all(fits).then_some(names)
}

/// A worker's base URL in its one spelling, so that a worker that is listed twice is seen to be. What stands before an
/// `@` may be a password and is not repeated.
fn read_url(text: &str) -> Result<String, String> {
    let shown = if text.contains('@') { "…@…" } else { text };
    let parsed = WorkerUrl::parse(&text.to_ascii_lowercase());
    parsed.map(|url| url.canonical()).map_err(|error| format!("\"{shown}\" is no worker's URL; {}", error.reason))
}

/// A KV event endpoint, in the shapes that the listener takes.
fn read_endpoint(text: &str) -> Result<String, String> {
    let parsed = Attach::parse(text, "localhost");
    parsed.map(|_| text.to_owned()).map_err(|error| format!("\"{text}\" is no endpoint; {}", error.reason))
}

/// `name:port`, `1.2.3.4:port` or `[::1]:port`, port 1 to 65535.
fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host_fits = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')),
    };
    host_fits && port.bytes().all(|b| b.is_ascii_digit()) && matches!(port.parse::<u16>(), Ok(1..))
}
