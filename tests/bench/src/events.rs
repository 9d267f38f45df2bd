//! Server-sent events as a client sees them: which ones carry text, and when the engine wrote them.
//!
//! The mock engine stamps each chunk of text with `~T` and twenty digits: nanoseconds of the machine's monotonic clock
//! just before the write. A client on the same machine reads the same clock, so the difference is the one-way delay
//! that whatever sits between them adds.

use memchr::memmem;

/// Digits of a stamp.
const STAMP_DIGITS: usize = 20;
/// Payload kept between two compactions; an event is a few hundred bytes.
const COMPACT_BYTES: usize = 64 * 1024;

/// Finds events in a payload that grows.
#[derive(Debug, Default)]
pub struct EventScanner {
    at: usize,
}

impl EventScanner {
    /// Calls `on_event` with each event that has become whole in `payload`, without its blank line. Drops scanned bytes
    /// from `payload` now and then.
    pub fn scan(&mut self, payload: &mut Vec<u8>, mut on_event: impl FnMut(&[u8])) {
        while let Some(length) = memmem::find(&payload[self.at..], b"\n\n") {
            on_event(&payload[self.at..self.at + length]);
            self.at += length + 2;
        }
        if self.at > COMPACT_BYTES {
            payload.drain(..self.at);
            self.at = 0;
        }
    }
}

/// Whether an event carries generated text (a role-only frame, usage or `[DONE]` does not).
pub fn has_text(event: &[u8]) -> bool {
    [&b"\"content\":"[..], b"\"text\":"].iter().any(|key| {
        memmem::find(event, key).is_some_and(|at| {
            let value = event[at + key.len()..].trim_ascii_start();
            value.starts_with(b"\"") && !value.starts_with(b"\"\"")
        })
    })
}

/// The engine's stamp in ns, where the event has one.
pub fn stamp_ns(event: &[u8]) -> Option<u64> {
    let at = memmem::find(event, b"~T")? + 2;
    let digits = event.get(at..at + STAMP_DIGITS)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_across_reads() {
        let (mut scanner, mut payload, mut seen) = (EventScanner::default(), Vec::new(), Vec::new());
        for part in ["data: a\n", "\ndata: b\n\nda", "ta: c\n\n"] {
            payload.extend_from_slice(part.as_bytes());
            scanner.scan(&mut payload, |event| seen.push(String::from_utf8(event.to_vec()).unwrap()));
        }
        assert_eq!(seen, ["data: a", "data: b", "data: c"]);
    }

    #[test]
    fn scanned_bytes_are_dropped_and_nothing_is_seen_twice() {
        let (mut scanner, mut payload, mut seen) = (EventScanner::default(), Vec::new(), 0);
        for _ in 0..1_000 {
            payload.extend_from_slice(&[b'x'; 300]);
            payload.extend_from_slice(b"\n\n");
            scanner.scan(&mut payload, |event| seen += event.len());
        }
        assert_eq!(seen, 300_000);
        assert!(payload.len() <= COMPACT_BYTES + 302);
    }

    #[test]
    fn only_events_with_text_count() {
        assert!(has_text(br#"data: {"choices":[{"delta":{"content":" tok"}}]}"#));
        assert!(has_text(br#"data: {"choices":[{"text": "x"}]}"#));
        assert!(!has_text(br#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#));
        assert!(!has_text(br#"data: {"choices":[{"delta":{"content":null}}]}"#));
        assert!(!has_text(b"data: [DONE]"));
    }

    #[test]
    fn stamps_are_read_where_they_are_whole() {
        assert_eq!(stamp_ns(b"..~T00000000001234567890.."), Some(1_234_567_890));
        assert_eq!(stamp_ns(b"..~T123"), None);
        assert_eq!(stamp_ns(b"no stamp"), None);
    }
}
