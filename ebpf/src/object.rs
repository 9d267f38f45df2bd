//! The object with all programs, and loading part of it.

use crate::error::{Error, Stage};
use aya::programs::Program;
use aya::{Ebpf, EbpfLoader};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// The compiled kernel programs, committed as `ebpf/prebuilt/forebay.o` so that building this needs no kernel toolchain.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!("../prebuilt/forebay.o");

/// Maps of the two halves; the half that is not used is made as small as maps go.
pub(crate) const LOAD_MAPS: &[&str] = &["WORKERS", "LOAD", "PORTS", "PEERS", "HEALTH"];
pub(crate) const GUARD_MAPS: &[&str] =
    &["LAYOUT", "ALLOW", "DENY", "TARGETS", "SETTINGS", "SOURCES", "RULE_HITS", "VERDICTS"];

/// Makes the maps of the object; those in `unused` with one entry, those in `pins` adopted from or pinned to a path.
pub(crate) fn open(unused: &[&'static str], pins: &[(&'static str, PathBuf)]) -> Result<Ebpf, Error> {
    let mut loader = EbpfLoader::new();
    for name in unused {
        loader.map_max_entries(name, 1);
    }
    for (name, path) in pins {
        loader.map_pin_path(name, path.clone());
    }
    loader.load(OBJECT).map_err(|error| Error::caused(Stage::Open, "kernel programs", &error))
}

/// The program called `name`.
pub(crate) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, Error>
where
    &'a mut P: TryFrom<&'a mut Program, Error = aya::programs::ProgramError>,
{
    let found =
        ebpf.program_mut(name).ok_or_else(|| Error::new(Stage::Open, name, "the object has no such program"))?;
    found.try_into().map_err(|error| Error::caused(Stage::Open, name, &error))
}

/// How often a program ran and how long that took, while somebody held [`RunStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramRun {
    /// Runs.
    pub runs: u64,
    /// Time in them all, without what it takes to get there.
    pub time: Duration,
}

/// What the verifier made of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSize {
    /// Its name.
    pub name: String,
    /// Instructions that the verifier walked, of at most a million; `None` on kernels that do not say.
    pub verified: Option<u32>,
}

/// The kernel counts and times runs of all programs while this lives. Costs tens of ns a run.
#[derive(Debug)]
pub struct RunStats(#[expect(dead_code, reason = "counting ends when it is closed")] OwnedFd);

impl RunStats {
    /// Begins.
    pub fn enable() -> Result<Self, Error> {
        aya::sys::enable_stats(aya::sys::Stats::RunTime)
            .map(Self)
            .map_err(|error| Error::caused(Stage::Load, "run statistics", &error))
    }
}

/// Runs of the loaded programs among `names`, together.
pub(crate) fn runs(ebpf: &Ebpf, names: &[&str]) -> Result<ProgramRun, Error> {
    let mut sum = ProgramRun::default();
    for name in names {
        let Some(program) = ebpf.program(name) else { continue };
        let Ok(info) = program.info() else { continue };
        sum.runs += info.run_count();
        sum.time += info.run_time();
    }
    Ok(sum)
}

pub(crate) fn size(ebpf: &Ebpf, name: &str) -> Option<ProgramSize> {
    let info = ebpf.program(name)?.info().ok()?;
    Some(ProgramSize { name: name.to_owned(), verified: info.verified_instruction_count() })
}
