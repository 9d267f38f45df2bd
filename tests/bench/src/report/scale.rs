//! What `scale.sh` found: figures that are no repetition of a test, one a line of `scale.tsv`.
//!
//! `KEY  VALUE or na  most or least or -  BOUND  WHAT  HOW`, separated by tabs.

use super::goal::Bound;

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaled {
    /// Its name in the `RESULT` line.
    pub key: String,
    /// What it is.
    pub what: String,
    /// The bound, where there is one.
    pub bound: Option<Bound>,
    /// What was measured.
    pub value: Option<f64>,
    /// What stands behind it, or why there is none.
    pub how: String,
}

/// The lines of the file; those that are none are left out. Of two with one key the later counts.
pub fn scaled(text: &str) -> Vec<Scaled> {
    let mut found: Vec<Scaled> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.splitn(6, '\t').collect();
        let [key, value, kind, bound, what, how] = fields[..] else { continue };
        let bound = bound.parse().ok().and_then(|bound| match kind {
            "most" => Some(Bound::AtMost(bound)),
            "least" => Some(Bound::AtLeast(bound)),
            _ => None,
        });
        let one = Scaled { key: key.into(), what: what.into(), bound, value: value.parse().ok(), how: how.into() };
        match found.iter_mut().find(|known| known.key == one.key) {
            Some(known) => *known = one,
            None => found.push(one),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_figures_and_the_later_one_counts() {
        let found = scaled("a\t1\tmost\t2\twhat\thow\nnonsense\nb\tna\t-\t-\tx\twhy\na\t3\tleast\t2\twhat\tagain\n");
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].value, found[0].bound, found[0].how.as_str()),
            (Some(3.0), Some(Bound::AtLeast(2.0)), "again")
        );
        assert_eq!((found[1].value, found[1].bound), (None, None));
    }
}
