//! Prometheus text, read line by line for the few series that matter here.
//!
//! Unknown series, comments and broken lines are passed over: an engine's new metric must never cost us its load.

/// One sample: `name{labels} value`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Series name.
    pub name: &'a str,
    labels: &'a str,
    /// Value; never NaN.
    pub value: f64,
}

impl<'a> Sample<'a> {
    /// Value of label `name`, escapes left as they are.
    pub fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (key, after) = rest.split_once("=\"")?;
            let end = closing_quote(after)?;
            if key.trim_start_matches([',', ' ']) == name {
                return after.get(..end);
            }
            rest = after.get(end + 1..)?;
        }
    }
}

/// Position of the first quote that no backslash escapes.
fn closing_quote(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// Every well-formed sample of `text`, in order.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => {
            let end = closing_brace(inside)?;
            (&inside[..end], &inside[end + 1..])
        }
        None => ("", rest),
    };
    // A timestamp may follow the value.
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (!value.is_nan()).then_some(Sample { name, labels, value })
}

/// Position of the brace that closes the labels: the first one outside quotes.
fn closing_brace(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut quoted) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_labels_with_quotes_braces_and_commas() {
        let text =
            "# HELP x\nx{a=\"1,}\",b=\"q\\\"z\",c=\"\"} 2.5 1700000\n\nplain 7\nbroken{a=\"1\nnan NaN\ninf +Inf\n";
        let all: Vec<_> = samples(text).collect();
        assert_eq!(all.len(), 3);
        assert_eq!((all[0].name, all[0].value), ("x", 2.5));
        assert_eq!(all[0].label("a"), Some("1,}"));
        assert_eq!(all[0].label("b"), Some("q\\\"z"));
        assert_eq!(all[0].label("c"), Some(""));
        assert_eq!(all[0].label("d"), None);
        assert_eq!((all[1].name, all[1].value), ("plain", 7.0));
        assert_eq!(all[2].value, f64::INFINITY);
    }

    #[test]
    fn a_label_name_must_match_whole() {
        let found: Vec<_> = samples("m{xengine=\"9\",engine=\"0\"} 1").collect();
        assert_eq!(found[0].label("engine"), Some("0"));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "\\PC*|[a-z{}\"=\\\\,0-9 \n]*") {
            for sample in samples(&text) {
                let _ = sample.label("engine");
            }
        }
    }
}
