//! Media that a request names: which an engine may be sent to fetch.

use super::{denied, embeds_denied};
use crate::config::resolved::{Media, Policy};
use crate::error::Fault;
use crate::parse::{Dialect, Parsed, text};
use std::net::IpAddr;
use std::ops::Range;

/// Containers below `messages` in which media are looked for: list, message, content, part, `image_url`; engines look no
/// deeper.
const MAX_WALK: u32 = 8;

impl Parsed {
    pub(super) fn check_media(&self, policy: &Policy) -> Result<(), Fault> {
        if policy.media == Media::Any && policy.allow_embeds {
            return Ok(());
        }
        // Anthropic's sources name theirs so.
        let bare = self.dialect == Dialect::Messages;
        let mut count = 0;
        let mut open = vec![(self.prompt.clone(), 0)];
        while let Some((span, depth)) = open.pop() {
            for (key, value) in self.members(&span) {
                if key.ends_with("_embeds") && self.body[value.start] != b'n' && !policy.allow_embeds {
                    return Err(embeds_denied("messages"));
                }
                if key.ends_with("_url") || bare && key == "url" {
                    count += 1;
                    self.check_url(policy, &value)?;
                }
                if depth < MAX_WALK && matches!(self.body[value.start], b'{' | b'[') {
                    open.push((value, depth + 1));
                }
            }
        }
        if count > policy.max_media {
            let message = format!("the messages name {count} media; at most {} are served", policy.max_media);
            return Err(denied("too_many_media", "messages", message, "requests.max_media"));
        }
        Ok(())
    }

    /// SGLang's media: base64, a URL or the name of a file, alone or in lists.
    pub(super) fn check_data(&self, policy: &Policy, name: &'static str, span: &Range<usize>) -> Result<(), Fault> {
        let mut open = vec![(span.clone(), 0)];
        while let Some((span, depth)) = open.pop() {
            let value = &self.body[span.clone()];
            // What is neither text nor ends in base64's letters is fetched or opened.
            let foreign = value.first() == Some(&b'"') && memchr::memchr3(b'.', b':', b'\\', value).is_some();
            if foreign {
                self.check_url(policy, &span)?;
            } else if value.first() == Some(&b'"') && policy.media == Media::None {
                let message = format!("`{name}` holds media, and none are served");
                return Err(denied("media_denied", name, message, "requests.media"));
            }
            if depth < MAX_WALK {
                open.extend(self.members(&span).into_iter().map(|(_, value)| (value, depth + 1)));
            }
        }
        Ok(())
    }

    /// `value` is a URL, or an object whose `url` is one.
    fn check_url(&self, policy: &Policy, value: &Range<usize>) -> Result<(), Fault> {
        let spans = match self.body[value.start] {
            b'"' => vec![value.clone()],
            b'{' => self.members(value).into_iter().filter(|(key, _)| key == "url").map(|(_, span)| span).collect(),
            _ => Vec::new(),
        };
        for span in spans.into_iter().filter(|span| self.body[span.start] == b'"') {
            let inner = std::str::from_utf8(&self.body[span.start + 1..span.end - 1]).unwrap_or_default();
            // An inlined medium has megabytes: only its start says what it is.
            let start = &inner[..inner.floor_char_boundary(2_048)];
            let url = text::unescape(start.trim_end_matches('\\')).unwrap_or_default();
            let allowed = match policy.media {
                Media::Any => true,
                Media::None => false,
                Media::Inline => is_inline(&url),
                Media::Public => is_inline(&url) || is_public(&url),
            };
            if !allowed {
                let message = "the messages name a medium that this gateway lets no engine fetch";
                return Err(denied("media_denied", "messages", message.to_owned(), "requests.media"));
            }
        }
        Ok(())
    }
}

fn is_inline(url: &str) -> bool {
    url.trim_start().get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:"))
}

/// `http(s)://` to a name or to an address of the public network. A name that leads into a private network is not seen
/// here: only whoever fetches can tell.
fn is_public(url: &str) -> bool {
    let url = url.trim();
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") || rest.contains('\\') {
        return false;
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit('@').next().unwrap_or_default();
    let host = match place.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => place.split(':').next().unwrap_or_default(),
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    if let Ok(address) = host.parse::<IpAddr>() {
        return is_public_address(address);
    }
    // `127.1`, `0x7f000001` and `2130706433` are addresses to some resolvers: a top-level name never starts with a digit.
    let top = host.rsplit('.').next().unwrap_or_default();
    let local = ["localhost", "local", "internal", "lan", "home", "corp", "svc"];
    host.contains('.') && !top.is_empty() && !top.starts_with(|c: char| c.is_ascii_digit()) && !local.contains(&top)
}

fn is_public_address(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_broadcast()
                || v4.is_documentation()
                || v4.is_multicast()
                || a == 0
                || a >= 240
                || shared)
        }
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            let unique_local = first & 0xfe00 == 0xfc00;
            let link_local = first & 0xffc0 == 0xfe80;
            // NAT64 and 6to4 wrap any IPv4 address.
            let wraps = first == 0x0064 || first == 0x2002;
            !(v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || unique_local || link_local || wraps)
        }
    }
}
