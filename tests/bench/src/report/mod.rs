//! From the files of one suite to markdown tables and the `RESULT` line. Pure but for [`suite::Suite::load`].
//!
//! A figure is the median over the repetitions, with the range beside it. A repetition in which more than one request in
//! a hundred failed is dropped; a router whose every repetition was dropped, or which did not start, reads `na` with the
//! reason below the tables. Nothing is ever filled in.

pub mod goal;
pub mod index;
pub mod page;
pub mod scale;
pub mod suite;
pub mod table;
