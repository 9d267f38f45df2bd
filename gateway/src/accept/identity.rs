//! Request ids: the client's where it is fit to be logged and sent on, else a fresh one.

/// Bytes of a client's id; longer ones are replaced, since ids go into logs, headers and engine ids.
const MAX_ID: usize = 128;

/// The id of one request.
pub(super) fn request_id(sent: Option<&[u8]>) -> String {
    match sent {
        Some(id) if is_fit(id) => String::from_utf8_lossy(id).into_owned(),
        _ => format!("{:032x}", fastrand::u128(..)),
    }
}

/// Letters, digits and `-_.:/+=@`: nothing that could break a log line, a header or a URL.
fn is_fit(id: &[u8]) -> bool {
    let fit = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    !id.is_empty() && id.len() <= MAX_ID && id.iter().all(fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_a_fit_id_and_replaces_others() {
        assert_eq!(request_id(Some(b"abc-1.2:3")), "abc-1.2:3");
        for unfit in [&b""[..], b"a b", b"a\"b", b"a\nb", "ä".as_bytes(), &[b'a'; MAX_ID + 1]] {
            let id = request_id(Some(unfit));
            assert_eq!(id.len(), 32, "{id}");
            assert!(id.bytes().all(|b| b.is_ascii_hexdigit()));
        }
        assert_ne!(request_id(None), request_id(None));
    }
}
