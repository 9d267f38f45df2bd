//! Header fields as ranges into the head they came in, classified once.

use super::Malformed;
use smallvec::SmallVec;

/// What a field means to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Passed on untouched.
    Other,
    /// `content-length`.
    ContentLength,
    /// `transfer-encoding`.
    TransferEncoding,
    /// `connection`.
    Connection,
    /// Any other field that belongs to one connection only.
    HopByHop,
    /// `host`.
    Host,
    /// `expect`.
    Expect,
    /// `x-request-id`.
    RequestId,
    /// `x-data-parallel-rank`: the gateway's to set.
    Rank,
    /// `x-forebay-session`.
    Session,
    /// What an agent calls its session: `x-claude-code-session-id`, `session_id` and `session-id` (Codex),
    /// `x-opencode-session`, `x-session-affinity`, `x-session-id`. Passed on, since it is the engine's too.
    AgentSession,
    /// Any other `x-forebay-*`.
    Forebay,
    /// `content-type`.
    ContentType,
    /// `accept-encoding`.
    AcceptEncoding,
    /// `authorization`.
    Authorization,
    /// `x-api-key`.
    ApiKey,
    /// `upgrade`.
    Upgrade,
    /// `content-encoding`.
    ContentEncoding,
    /// `x-forwarded-for`.
    ForwardedFor,
    /// Any other field in which a proxy says where a request came from.
    Forwarded,
    /// Steers some gateway or engine from inside a cluster; no client's to set.
    Control,
}

/// One field line. Offsets index the head's bytes; a head is bounded far below 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Meaning.
    pub kind: Kind,
    /// Named by this message's `Connection` field: hop-by-hop for this message.
    pub named: bool,
    name: (u32, u32),
    value: (u32, u32),
}

/// Fields in the order in which they came. Real heads have 6 to 20, so the common case does not allocate.
pub type Fields = SmallVec<[Field; 20]>;

impl Field {
    /// Field name as sent.
    pub fn name<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[self.name.0 as usize..self.name.1 as usize]
    }

    /// Field value without surrounding blanks.
    pub fn value<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[self.value.0 as usize..self.value.1 as usize]
    }

    /// `true` for what must not cross the gateway in either direction.
    pub fn stays(&self) -> bool {
        self.named
            || matches!(
                self.kind,
                Kind::ContentLength
                    | Kind::TransferEncoding
                    | Kind::Connection
                    | Kind::HopByHop
                    | Kind::Upgrade
                    | Kind::Forebay
                    | Kind::Session
                    | Kind::Control
            )
    }

    /// Appends `name: value\r\n`.
    pub fn write(&self, head: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(self.name(head));
        out.extend_from_slice(b": ");
        out.extend_from_slice(self.value(head));
        out.extend_from_slice(b"\r\n");
    }
}

/// Fields with a meaning, by the length of their names: a field costs one comparison, most cost none.
const KNOWN: [&[(&[u8], Kind)]; 28] = [
    &[],
    &[],
    &[(b"te", Kind::HopByHop)],
    &[],
    &[(b"host", Kind::Host)],
    &[],
    &[(b"expect", Kind::Expect)],
    &[(b"trailer", Kind::HopByHop), (b"upgrade", Kind::Upgrade)],
    &[],
    &[(b"x-api-key", Kind::ApiKey), (b"x-real-ip", Kind::Forwarded), (b"forwarded", Kind::Forwarded)],
    &[
        (b"connection", Kind::Connection),
        (b"keep-alive", Kind::HopByHop),
        (b"session_id", Kind::AgentSession),
        (b"session-id", Kind::AgentSession),
    ],
    &[],
    &[(b"content-type", Kind::ContentType), (b"x-request-id", Kind::RequestId), (b"x-session-id", Kind::AgentSession)],
    &[(b"authorization", Kind::Authorization), (b"x-slo-ttft-ms", Kind::Control), (b"x-slo-tpot-ms", Kind::Control)],
    &[(b"content-length", Kind::ContentLength)],
    &[(b"accept-encoding", Kind::AcceptEncoding), (b"x-forwarded-for", Kind::ForwardedFor)],
    &[
        (b"content-encoding", Kind::ContentEncoding),
        (b"proxy-connection", Kind::HopByHop),
        (b"x-forwarded-host", Kind::Forwarded),
        (b"x-forwarded-port", Kind::Forwarded),
        (b"x-forwarded-user", Kind::Forwarded),
    ],
    &[
        (b"transfer-encoding", Kind::TransferEncoding),
        (b"x-forebay-session", Kind::Session),
        (b"x-forwarded-proto", Kind::Forwarded),
        (b"x-smg-routing-key", Kind::Control),
    ],
    &[
        (b"proxy-authenticate", Kind::HopByHop),
        (b"x-forwarded-prefix", Kind::Forwarded),
        (b"x-opencode-session", Kind::AgentSession),
        (b"x-session-affinity", Kind::AgentSession),
    ],
    &[(b"proxy-authorization", Kind::HopByHop)],
    &[(b"x-data-parallel-rank", Kind::Rank), (b"x-worker-instance-id", Kind::Control)],
    &[
        (b"x-prefiller-host-port", Kind::Control),
        (b"x-prefill-instance-id", Kind::Control),
        (b"x-encoder-hosts-ports", Kind::Control),
    ],
    &[],
    &[],
    &[(b"x-claude-code-session-id", Kind::AgentSession)],
    &[(b"x-data-parallel-host-port", Kind::Control)],
    &[],
    &[(b"x-kv-cache-source-host-port", Kind::Control)],
];

/// Families of fields by which the parts of an inference cluster steer each other.
const CONTROL: [&[u8]; 6] =
    [b"x-gateway-", b"x-llm-d-", b"x-dynamo-", b"x-smg-target-", b"x-inference-", b"x-kv-transfer-"];

fn classify(name: &[u8]) -> Kind {
    let known = KNOWN.get(name.len()).copied().unwrap_or_default();
    if let Some((_, kind)) = known.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)) {
        return *kind;
    }
    let starts = |prefix: &[u8]| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    match name {
        [b'x' | b'X', b'-', ..] if starts(b"x-forebay-") => Kind::Forebay,
        [b'x' | b'X', b'-', ..] if CONTROL.iter().any(|prefix| starts(prefix)) => Kind::Control,
        _ => Kind::Other,
    }
}

/// What the framing fields of one head say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framed {
    /// `Content-Length`, once and decimal.
    pub length: Option<u64>,
    /// `Transfer-Encoding: chunked`.
    pub chunked: bool,
    /// `Connection: close`.
    pub close: bool,
    /// `Connection: keep-alive`.
    pub keep_alive: bool,
}

/// Turns what httparse found in `head` into ranges, and reads the framing fields.
pub(super) fn collect(head: &[u8], parsed: &[httparse::Header<'_>]) -> Result<(Fields, Framed), Malformed> {
    let base = head.as_ptr() as usize;
    let range = |part: &[u8]| {
        let start = (part.as_ptr() as usize).wrapping_sub(base);
        debug_assert!(part.is_empty() || start + part.len() <= head.len());
        if part.is_empty() { (0, 0) } else { (start as u32, (start + part.len()) as u32) }
    };
    let mut fields = Fields::new();
    let mut framed = Framed::default();
    for header in parsed {
        let name = header.name.as_bytes();
        let value = header.value.trim_ascii();
        let kind = classify(name);
        match kind {
            Kind::ContentLength => {
                if framed.length.is_some() {
                    return Err(Malformed::bad("more than one Content-Length"));
                }
                framed.length = Some(decimal(value).ok_or(Malformed::bad("Content-Length is not a decimal number"))?);
            }
            Kind::TransferEncoding => {
                if framed.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed { status: 501, what: "only one Transfer-Encoding, chunked, is understood" });
                }
                framed.chunked = true;
            }
            Kind::Connection => {
                for option in tokens(value) {
                    framed.close |= option.eq_ignore_ascii_case(b"close");
                    framed.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            _ => {}
        }
        fields.push(Field { kind, named: false, name: range(name), value: range(value) });
    }
    if framed.length.is_some() && framed.chunked {
        return Err(Malformed::bad("Content-Length together with Transfer-Encoding"));
    }
    mark_named(head, &mut fields);
    Ok((fields, framed))
}

/// Marks the fields that a `Connection` field names.
fn mark_named(head: &[u8], fields: &mut Fields) {
    let connections: SmallVec<[Field; 2]> = fields.iter().filter(|f| f.kind == Kind::Connection).copied().collect();
    for connection in connections {
        for option in tokens(connection.value(head)) {
            if option.eq_ignore_ascii_case(b"close") || option.eq_ignore_ascii_case(b"keep-alive") {
                continue;
            }
            for field in fields.iter_mut() {
                field.named |= field.name(head).eq_ignore_ascii_case(option);
            }
        }
    }
}

fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// Digits only (`+5`, `5,5`, an empty value and anything over `u64` are refused).
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// Appends `value` in decimal.
pub fn write_decimal(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}
