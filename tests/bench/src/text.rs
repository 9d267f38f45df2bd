//! Prompt text with the word statistics of English technical prose, drawn fresh from a seed.
//!
//! A byte-pair tokenizer splits text into words first, so its work depends on the words and their frequencies, not on
//! their order. Drawing words by frequency therefore costs a tokenizer what real prose costs, repeats no phrase by
//! accident, and needs no corpus on disk. One word in `UNSEEN_ONE_IN` is made of random letters, as names and
//! identifiers are, so that no cache of words ever holds them all.

use fastrand::Rng;

/// One word in so many is in no list: prose has about four such in a hundred.
const UNSEEN_ONE_IN: u32 = 32;
/// One gap in so many is a paragraph break.
const PARAGRAPH_ONE_IN: u32 = 64;
/// Slots of the sampling table: enough that a word seen once in 65,536 draws has its own.
const TABLE_SLOTS: u64 = 65_536;
/// Text shorter than this is filled with letters, so that every length comes out exact.
const LONGEST_STEP_BYTES: usize = 32;

/// The committed word list: `COUNT word word …` a line.
const WORDS: &str = include_str!("../words.txt");

/// Words, each as often in the table as it is in prose.
#[derive(Debug)]
pub struct Vocabulary {
    table: Vec<&'static str>,
}

impl Default for Vocabulary {
    fn default() -> Self {
        Self::from_list(WORDS)
    }
}

impl Vocabulary {
    fn from_list(list: &'static str) -> Self {
        let counted: Vec<(u64, &'static str)> = list
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(count, words)| count.parse::<u64>().ok().map(|count| (count, words)))
            .flat_map(|(count, words)| words.split(' ').map(move |word| (count, word)))
            .collect();
        let total: u64 = counted.iter().map(|(count, _)| count).sum();
        let slots = |count: u64| usize::try_from((count * TABLE_SLOTS / total.max(1)).max(1)).unwrap_or(1);
        let table = counted.iter().flat_map(|&(count, word)| std::iter::repeat_n(word, slots(count))).collect();
        Self { table }
    }

    /// Appends exactly `bytes` bytes of text, safe inside a JSON string (a paragraph break is `\n\n`, escaped).
    pub fn write(&self, rng: &mut Rng, bytes: usize, out: &mut Vec<u8>) {
        let end = out.len() + bytes;
        while out.len() + LONGEST_STEP_BYTES < end {
            if rng.u32(..UNSEEN_ONE_IN) == 0 {
                let letters = rng.usize(4..=10);
                write_letters(rng, letters, out);
            } else {
                out.extend_from_slice(self.table[rng.usize(..self.table.len())].as_bytes());
            }
            out.extend_from_slice(if rng.u32(..PARAGRAPH_ONE_IN) == 0 { b"\\n\\n" } else { b" " });
        }
        write_letters(rng, end - out.len(), out);
    }
}

fn write_letters(rng: &mut Rng, count: usize, out: &mut Vec<u8>) {
    out.extend((0..count).map(|_| rng.u8(b'a'..=b'z')));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seed: u64, bytes: usize) -> String {
        let mut out = Vec::new();
        Vocabulary::default().write(&mut Rng::with_seed(seed), bytes, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn length_is_exact_and_the_same_seed_gives_the_same_text() {
        for bytes in [0, 1, 31, 32, 33, 200, 32_768] {
            assert_eq!(text(7, bytes).len(), bytes);
        }
        assert_eq!(text(7, 1_000), text(7, 1_000));
        assert_ne!(text(7, 1_000), text(8, 1_000));
    }

    #[test]
    fn text_is_a_json_string_with_prose_like_words() {
        let text = text(1, 100_000);
        let parsed: String = serde_json::from_str(&format!("\"{text}\"")).unwrap();
        let words: Vec<&str> = parsed.split_whitespace().collect();
        let mean_bytes = parsed.len() as f64 / words.len() as f64;
        assert!((5.0..7.0).contains(&mean_bytes), "{mean_bytes} bytes a word");
        let the = words.iter().filter(|word| **word == "the").count() as f64 / words.len() as f64;
        assert!((0.05..0.08).contains(&the), "'the' is {the} of all words");
        assert!(parsed.contains("\n\n"));
    }
}
