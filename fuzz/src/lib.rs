//! What the targets share: [`checks`], which the ordinary tests run over the committed corpora as well.

pub mod checks;
