//! API keys: a file with one hash a line, and the look-up of what a caller presents.
//!
//! ```text
//! # tenant   roles         hash of the key
//! acme       use           sha256:5e88…
//! ops        use,operate   sha256:9b71…
//! ```
//!
//! A key is 256 random bits, so a plain SHA-256 is enough: a slow hash protects passwords that can be guessed. The file
//! never holds a key, and no message repeats a line of it, since somebody may have put a key there by mistake.

use super::DoorsError;
use hashbrown::HashMap;
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;
use std::fmt::Write as _;
use std::sync::Arc;

/// Lines of the file that hold a key. More belong into an identity provider in front.
pub const MAX_KEYS: usize = 10_000;
/// Bytes of the file: that many lines of the longest kind.
pub const MAX_FILE_BYTES: u64 = 2 << 20;
/// Bytes of a tenant's name: it goes into every line of the access log.
const MAX_TENANT: usize = 64;
/// Marks a key as ours, for scanners that look for secrets in repositories.
const PREFIX: &str = "fbk_";
/// Bytes of randomness in a key.
pub const KEY_BYTES: usize = 32;

type Hash = [u8; 32];

/// Who is calling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Name beside the key; `None` where no keys are configured.
    pub tenant: Option<Arc<str>>,
    /// May send requests to models.
    pub may_use: bool,
    /// May use the admin listener and see what was decided.
    pub may_operate: bool,
}

impl Caller {
    /// Whoever comes, where no keys are configured.
    pub fn anybody() -> Self {
        Self { tenant: None, may_use: true, may_operate: false }
    }

    /// Whether `x-forebay-*` fields may be shown: they tell what the gateway knows of others' prompts, so where callers are
    /// told apart only operators see them.
    pub fn sees_diagnostics(&self) -> bool {
        self.tenant.is_none() || self.may_operate
    }
}

struct Entry {
    hash: Hash,
    caller: Caller,
}

/// The keys of one file.
#[derive(Default)]
pub struct Keys {
    /// By the first bytes of the hash. What a caller can learn from the time of this look-up are bits of a hash, and those
    /// lead to no key.
    entries: HashMap<u64, SmallVec<[Entry; 1]>>,
    count: usize,
}

impl Keys {
    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Self, DoorsError> {
        let mut keys = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |what: &str| DoorsError::Keys { line: number + 1, what: what.to_owned() };
            if keys.count >= MAX_KEYS {
                return Err(wrong(&format!("more than {MAX_KEYS} keys")));
            }
            let mut words = line.split_ascii_whitespace();
            let (Some(tenant), Some(roles), Some(hash), None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                return Err(wrong("not three words; write: tenant roles sha256:…"));
            };
            let caller = caller(tenant, roles).map_err(&wrong)?;
            let hash = hash.strip_prefix("sha256:").and_then(read_hash);
            let hash = hash.ok_or_else(|| wrong("the hash is not sha256: and 64 hex digits; see `forebay key new`"))?;
            let bucket = keys.entries.entry(bucket(&hash)).or_default();
            if bucket.iter().any(|entry| entry.hash == hash) {
                return Err(wrong("this hash stands in the file twice; remove one line"));
            }
            bucket.push(Entry { hash, caller });
            keys.count += 1;
        }
        Ok(keys)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.count
    }

    /// No key is good.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whose key this is. Every candidate is compared to its last byte.
    pub fn find(&self, key: &[u8]) -> Option<&Caller> {
        let hash: Hash = Sha256::digest(key).into();
        let bucket = self.entries.get(&bucket(&hash))?;
        bucket.iter().fold(None, |found, entry| if same(&entry.hash, &hash) { Some(&entry.caller) } else { found })
    }
}

fn caller(tenant: &str, roles: &str) -> Result<Caller, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if tenant.len() > MAX_TENANT || !tenant.bytes().all(fits) {
        return Err("the tenant has other characters than A-Z a-z 0-9 . _ -, or more than 64");
    }
    let mut caller = Caller { tenant: Some(tenant.into()), may_use: false, may_operate: false };
    for role in roles.split(',') {
        match role {
            "use" => caller.may_use = true,
            "operate" => caller.may_operate = true,
            _ => return Err("a role is neither use nor operate"),
        }
    }
    Ok(caller)
}

fn bucket(hash: &Hash) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(first)
}

/// Takes the same time wherever the two differ.
fn same(a: &Hash, b: &Hash) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b))) == 0
}

fn read_hash(hex: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// A new key from `random`, and the line for the file.
pub fn make(tenant: &str, roles: &str, random: [u8; KEY_BYTES]) -> Result<(String, String), &'static str> {
    caller(tenant, roles)?;
    let mut key = PREFIX.to_owned();
    let mut line = format!("{tenant} {roles} sha256:");
    // Writing to a string cannot fail.
    random.iter().for_each(|byte| _ = write!(key, "{byte:02x}"));
    Sha256::digest(&key).iter().for_each(|byte| _ = write!(line, "{byte:02x}"));
    Ok((key, line))
}

/// The key among a request's fields: `Authorization: Bearer …`, else `x-api-key`.
pub fn presented<'a>(authorization: Option<&'a [u8]>, api_key: Option<&'a [u8]>) -> Option<&'a [u8]> {
    let bearer = authorization.and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or(api_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_key_is_found_and_its_neighbour_is_not() {
        let (key, line) = make("acme", "use,operate", [7; KEY_BYTES]).expect("made");
        assert!(key.starts_with("fbk_") && key.len() == 68 && !line.contains(&key[4..]));
        let keys = Keys::parse(&format!("# all\n\n{line} # acme's\n")).expect("good");
        let caller = keys.find(key.as_bytes()).expect("found");
        assert_eq!((caller.tenant.as_deref(), caller.may_use, caller.may_operate), (Some("acme"), true, true));
        assert!(keys.find(&key.as_bytes()[..67]).is_none() && keys.find(b"").is_none());
        let (other, _) = make("acme", "use", [8; KEY_BYTES]).expect("made");
        assert!(keys.find(other.as_bytes()).is_none());
        assert_eq!(keys.len(), 1);
    }

    #[test]
    fn a_bad_line_is_named_by_its_number_and_never_repeated() {
        let good = make("a", "use", [1; KEY_BYTES]).expect("made").1;
        let cases = [
            "fbk_secretsecret".to_owned(),
            "a use".to_owned(),
            "a use sha256:12".to_owned(),
            "a root sha256:00".to_owned(),
            "a/b use sha256:00".to_owned(),
            format!("{good} extra"),
            good.replace("sha256", "md5"),
            good.clone(),
        ];
        for line in cases {
            let error = Keys::parse(&format!("{good}\n{line}")).err().expect("refused").to_string();
            assert!(error.contains("line 2") && !error.contains("secret") && !error.contains(&line), "{error}");
        }
        assert!(make("a b", "use", [0; KEY_BYTES]).is_err() && make("a", "root", [0; KEY_BYTES]).is_err());
    }

    #[test]
    fn both_fields_carry_a_key() {
        assert_eq!(presented(Some(b"Bearer k1"), Some(b"k2")), Some(&b"k1"[..]));
        assert_eq!(presented(Some(b"bearer  k1 "), None), Some(&b"k1"[..]));
        assert_eq!(presented(Some(b"Basic dTpw"), Some(b"k2")), Some(&b"k2"[..]));
        assert_eq!(presented(Some(b"Bearer"), None), None);
        assert_eq!(presented(None, None), None);
    }
}
