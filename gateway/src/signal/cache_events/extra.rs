//! What beside tokens and adapter went into the hashes of blocks.

use super::msgpack::{Malformed, Reader};

/// What beside tokens and adapter went into the blocks' hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Extra<'a> {
    /// Salt of the prompt that begins here.
    pub(super) salt: Option<&'a str>,
    /// First block with keys that no text request has (images, prompt embeddings).
    pub(super) foreign_from: Option<usize>,
}

/// `keys` has one entry a block: nil, or a list of whatever else went into that block's hash. vLLM lists the adapter with
/// every block and the salt with the first; anything else makes the block one that no text request can match.
pub(super) fn read<'a>(mut keys: Reader<'a>, lora: Option<&str>, at_start: bool) -> Result<Extra<'a>, Malformed> {
    let mut extra = Extra::default();
    for block in 0..keys.array()? {
        if keys.nil()? {
            continue;
        }
        for _ in 0..keys.array()? {
            let salt = match salt(&mut keys)? {
                Some(text) if Some(text) == lora => continue,
                salt => salt,
            };
            if block == 0 && at_start && extra.salt.is_none() && salt.is_some() {
                extra.salt = salt;
            } else {
                extra.foreign_from = extra.foreign_from.or(Some(block));
            }
        }
    }
    Ok(extra)
}

/// A text, bare or tagged as salt; `None` for any other key.
fn salt<'a>(keys: &mut Reader<'a>) -> Result<Option<&'a str>, Malformed> {
    let mut key = keys.value()?;
    let mut bare = key;
    Ok(match key.array() {
        Ok(2) => {
            if key.text().is_ok_and(|tag| tag == "cache_salt") {
                key.text().ok()
            } else {
                None
            }
        }
        Ok(_) => None,
        Err(_) => bare.text().ok(),
    })
}
