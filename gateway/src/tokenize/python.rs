//! Values as Python writes them: `json.dumps` for the templates' `tojson`, `repr` for floats.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write;

/// Options of `json.dumps` that templates use.
#[derive(Clone, Debug)]
pub(crate) struct JsonStyle {
    /// Text of one indentation step; `None` writes one line.
    pub(crate) indent: Option<String>,
    /// Between items.
    pub(crate) item_separator: String,
    /// Between key and value.
    pub(crate) key_separator: String,
    /// Whether non-ASCII characters are escaped.
    pub(crate) ensure_ascii: bool,
    /// Whether keys are sorted.
    pub(crate) sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        Self {
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            ensure_ascii: false,
            sort_keys: false,
        }
    }
}

/// Appends `value` as JSON.
pub(crate) fn write_json(out: &mut String, value: &Value, style: &JsonStyle, level: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value),
        ValueKind::String => write_json_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items(out, style, level, ('[', ']'), &items, |out, item| write_json(out, item, style, level + 1))?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            }
            write_items(out, style, level, ('{', '}'), &keys, |out, key| {
                write_json_key(out, key, style)?;
                out.push_str(&style.key_separator);
                write_json(out, &value.get_item(key)?, style, level + 1)
            })?;
        }
        other => return Err(not_serializable(other)),
    }
    Ok(())
}

fn not_serializable(kind: ValueKind) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("a value of type {kind} is not JSON serializable"))
}

fn write_json_key(out: &mut String, key: &Value, style: &JsonStyle) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => write_json_string(out, key.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Number | ValueKind::Bool | ValueKind::None => {
            out.push('"');
            write_json(out, key, style, 0)?;
            out.push('"');
        }
        other => return Err(not_serializable(other)),
    }
    Ok(())
}

fn write_items(
    out: &mut String,
    style: &JsonStyle,
    level: usize,
    (open, close): (char, char),
    items: &[Value],
    mut each: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, style, level + 1);
        each(out, item)?;
    }
    if !items.is_empty() {
        new_line(out, style, level);
    }
    out.push(close);
    Ok(())
}

fn new_line(out: &mut String, style: &JsonStyle, level: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..level {
            out.push_str(indent);
        }
    }
}

/// Appends a number: integers as they are, floats as Python's `repr`.
pub(crate) fn write_number(out: &mut String, value: &Value) {
    if value.is_integer() {
        // Writing to a String cannot fail.
        let _ = write!(out, "{value}");
    } else {
        write_float(out, f64::try_from(value.clone()).unwrap_or(f64::NAN));
    }
}

/// Appends Python's `repr` of a float: shortest digits that read back, exponent from 1e16 on and below 1e-4.
pub(crate) fn write_float(out: &mut String, float: f64) {
    if float.is_nan() {
        return out.push_str("NaN");
    }
    if float.is_infinite() {
        return out.push_str(if float > 0.0 { "Infinity" } else { "-Infinity" });
    }
    // Rust's debug form has the same thresholds but writes `1e16` for `1e+16` and `1e-5` for `1e-05`.
    let digits = format!("{float:?}");
    let Some((mantissa, exponent)) = digits.split_once('e') else {
        return out.push_str(&digits);
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let _ = write!(out, "{mantissa}e{exponent:+03}");
}

fn write_json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            '\x7f'.. if ensure_ascii && char != '\x7f' => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            plain => out.push(plain),
        }
    }
    out.push('"');
}
