//! Which requests belong together, as far as clients say so.
//!
//! Two kinds. A *named* session is meant for routing: `x-forebay-session`, or `session_id` in the body. A *hint* is what
//! an agent sends for its own purposes and repeats through one session: header fields of Claude Code, Codex and
//! OpenCode, `prompt_cache_key`, Claude Code's `metadata.user_id`. Neither is ever derived from a key or an address.
//!
//! Policy `session` takes a name before a hint before the prompt's head. Under `kv` both are soft: a request with token
//! ids goes where its prefix is; only one that must be routed by text goes by its session rather than by its text, since
//! all sessions of one agent begin with the same text.

use crate::http1::RequestHead;
use crate::http1::fields::Kind;
use crate::parse::Parsed;

/// Bytes of a session's name; longer ones are no names.
const MAX_BYTES: usize = 512;

/// What a request says of its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    named: Option<Vec<u8>>,
    hint: Option<Vec<u8>>,
}

impl Session {
    /// Of a request.
    pub fn of(head: &RequestHead, parsed: &Parsed) -> Self {
        Self::new(head.value(Kind::Session), head.value(Kind::AgentSession), parsed)
    }

    /// Of its body, named by `named` in the header and hinted at by `agent` there.
    pub fn new(named: Option<&[u8]>, agent: Option<&[u8]>, parsed: &Parsed) -> Self {
        let fit = |bytes: &&[u8]| !bytes.is_empty() && bytes.len() <= MAX_BYTES;
        let named = named.or(parsed.session_id.as_deref().map(str::as_bytes)).filter(fit);
        let hint = agent.or(parsed.session_hint.as_deref().map(str::as_bytes)).filter(fit);
        Self { named: named.map(<[u8]>::to_vec), hint: hint.map(<[u8]>::to_vec) }
    }

    /// The name, else the hint.
    pub fn key(&self) -> Option<&[u8]> {
        self.named.as_deref().or(self.hint.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Dialect, parse};

    fn parsed(dialect: Dialect, body: &'static str) -> Parsed {
        parse(dialect, body.into()).expect("a body")
    }

    fn key(named: Option<&[u8]>, agent: Option<&[u8]>, parsed: &Parsed) -> Option<String> {
        Session::new(named, agent, parsed).key().map(|key| String::from_utf8_lossy(key).into_owned())
    }

    #[test]
    fn names_go_before_hints_and_headers_before_bodies() {
        let both = parsed(Dialect::Responses, r#"{"model":"m","input":"x","session_id":"s","prompt_cache_key":"k"}"#);
        assert_eq!(key(Some(b"h"), Some(b"a"), &both).as_deref(), Some("h"));
        assert_eq!(key(None, Some(b"a"), &both).as_deref(), Some("s"));
        let hinted = parsed(Dialect::Chat, r#"{"model":"m","messages":[],"prompt_cache_key":"k"}"#);
        assert_eq!(key(None, Some(b"a"), &hinted).as_deref(), Some("a"));
        assert_eq!(key(None, None, &hinted).as_deref(), Some("k"));
    }

    #[test]
    fn claude_codes_user_names_its_session_and_other_users_do_not() {
        let body = r#"{"model":"m","messages":[],"metadata":{"user_id":"user_1_account_2_session_3","x":1}}"#;
        assert_eq!(key(None, None, &parsed(Dialect::Messages, body)).as_deref(), Some("user_1_account_2_session_3"));
        for body in [
            r#"{"model":"m","messages":[],"metadata":{"user_id":"ann"}}"#,
            r#"{"model":"m","messages":[],"metadata":{"user_id":7}}"#,
            r#"{"model":"m","messages":[],"metadata":{}}"#,
            r#"{"model":"m","messages":[],"user":"ann"}"#,
        ] {
            assert_eq!(key(None, None, &parsed(Dialect::Messages, body)), None, "{body}");
        }
    }

    #[test]
    fn what_is_no_name_is_none() {
        let bare = parsed(Dialect::Chat, r#"{"model":"m","messages":[]}"#);
        let long = vec![b'x'; MAX_BYTES + 1];
        assert_eq!(key(Some(b""), Some(&long), &bare), None);
    }
}
