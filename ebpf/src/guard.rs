//! The XDP guard at one interface: lists, limits and counters.

pub use crate::link::Mode;

use crate::error::{Error, Stage};
use crate::link;
use crate::object::{self, GUARD_MAPS, LOAD_MAPS, ProgramRun, ProgramSize, open, program};
use crate::table::{PerCpu, Prefixes, Table, Values};
use aya::Ebpf;
use aya::maps::MapData;
use aya::programs::xdp::Xdp;
use aya::programs::{TestRun, TestRunOptions};
use forebay_common::kernel::LAYOUT_HASH;
use forebay_common::kernel::guard::{
    Bucket, MAX_PREFIXES, MAX_RULES, MAX_SOURCES, MAX_TARGETS, Settings, Target, Verdict,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A network in the form of the maps: bits of 128, IPv4 from 96 on.
pub type Prefix = (u32, [u8; 16]);

/// The loaded guard.
pub struct Guard {
    ebpf: Ebpf,
    allow: Prefixes,
    deny: Prefixes,
    targets: Table<20, 4>,
    settings: Values<16>,
    sources: Table<16, 24>,
    rule_hits: PerCpu,
    verdicts: PerCpu,
    pin: Option<PathBuf>,
}

/// What one packet met in [`Guard::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Whether it would go on.
    pub passed: bool,
    /// Mean time of a run.
    pub per_run: Duration,
}

impl Guard {
    /// Loads the guard. With `pin_dir`, a directory below a BPF file system, its maps are pinned there; those of an earlier process are
    /// adopted when their layout is ours.
    pub fn open(pin_dir: Option<&Path>) -> Result<Self, Error> {
        let mut pins = Vec::new();
        if let Some(directory) = pin_dir {
            std::fs::create_dir_all(directory).map_err(|error| {
                let mut error = Error::io(Stage::Pin, directory.display().to_string(), &error);
                error.why.push_str("; a BPF file system must be mounted there: mount -t bpf bpf /sys/fs/bpf");
                error
            })?;
            check_layout(directory)?;
            pins.extend(GUARD_MAPS.iter().map(|name| (*name, directory.join(name))));
        }
        let mut ebpf = open(LOAD_MAPS, &pins).map_err(|mut error| {
            if pin_dir.is_some() {
                error.stage = Stage::Pin;
                error.why.push_str("; is a BPF file system mounted there? mount -t bpf bpf /sys/fs/bpf");
            }
            error
        })?;
        let guard: &mut Xdp = program(&mut ebpf, "xdp_guard")?;
        guard.load().map_err(|error| Error::caused(Stage::Load, "xdp_guard", &error))?;
        Values::<8>::take(&mut ebpf, "LAYOUT")?.write(0, LAYOUT_HASH.to_ne_bytes())?;
        Ok(Self {
            allow: Prefixes::take(&mut ebpf, "ALLOW")?,
            deny: Prefixes::take(&mut ebpf, "DENY")?,
            targets: Table::take(&mut ebpf, "TARGETS")?,
            settings: Values::take(&mut ebpf, "SETTINGS")?,
            sources: Table::take(&mut ebpf, "SOURCES")?,
            rule_hits: PerCpu::take(&mut ebpf, "RULE_HITS")?,
            verdicts: PerCpu::take(&mut ebpf, "VERDICTS")?,
            ebpf,
            pin: pin_dir.map(|directory| directory.join("link")),
        })
    }

    /// Attaches to `interface`, or takes the place of the program that an earlier process left there by its pin; `None` for the mode
    /// then. Without a pin, dropping the guard detaches it.
    pub fn attach(&mut self, interface: &str) -> Result<Option<Mode>, Error> {
        let guard: &mut Xdp = program(&mut self.ebpf, "xdp_guard")?;
        match &self.pin {
            Some(pin) if pin.exists() => link::replace(guard, pin).map(|()| None),
            pin => link::attach(guard, interface, pin.as_deref()).map(Some),
        }
    }

    /// Takes away the pinned link and maps of `pin_dir`, which detaches the guard.
    pub fn remove(pin_dir: &Path) -> Result<(), Error> {
        let pin = pin_dir.join("link");
        if pin.exists() {
            link::remove(&pin)?;
        }
        for name in GUARD_MAPS {
            let path = pin_dir.join(name);
            if path.exists() {
                std::fs::remove_file(&path)
                    .map_err(|error| Error::io(Stage::Pin, path.display().to_string(), &error))?;
            }
        }
        Ok(())
    }

    /// Makes `targets` what is guarded; packets to anything else pass unjudged.
    pub fn set_targets(&mut self, targets: &[Target]) -> Result<(), Error> {
        if targets.len() > MAX_TARGETS as usize {
            return Err(too_many("TARGETS", targets.len(), MAX_TARGETS));
        }
        let wanted: BTreeSet<_> = targets.iter().map(Target::to_bytes).collect();
        for key in &wanted {
            self.targets.insert(*key, [0; 4])?;
        }
        for (key, _) in self.targets.entries(MAX_TARGETS as usize) {
            if !wanted.contains(&key) {
                self.targets.remove(key)?;
            }
        }
        Ok(())
    }

    /// What the guard may do.
    pub fn set(&mut self, settings: Settings) -> Result<(), Error> {
        self.settings.write(0, settings.to_bytes())
    }

    /// Replaces both lists. New entries come before old ones go, so a prefix that is in both is never missing. `deny` names each prefix's rule,
    /// below [`MAX_RULES`].
    pub fn set_lists(&mut self, allow: &[Prefix], deny: &[(Prefix, u32)]) -> Result<(), Error> {
        for (name, count) in [("ALLOW", allow.len()), ("DENY", deny.len())] {
            if count > MAX_PREFIXES as usize {
                return Err(too_many(name, count, MAX_PREFIXES));
            }
        }
        if let Some((_, rule)) = deny.iter().find(|(_, rule)| *rule >= MAX_RULES) {
            return Err(Error::new(Stage::Map, "DENY", format!("rule {rule} has no counter; there are {MAX_RULES}")));
        }
        let allow: Vec<_> = allow.iter().map(|prefix| (*prefix, 0)).collect();
        replace(&mut self.allow, &allow)?;
        replace(&mut self.deny, deny)
    }

    /// Packets that met `verdict` since the maps were made.
    pub fn verdict(&self, verdict: Verdict) -> Result<u64, Error> {
        self.verdicts.sum(verdict as u32)
    }

    /// Opening segments that met a rule of the deny list.
    pub fn rule_hits(&self, rule: u32) -> Result<u64, Error> {
        self.rule_hits.sum(rule)
    }

    /// Sources and how many connections each asked for, since each got its bucket.
    pub fn sources(&self) -> Vec<([u8; 16], u64)> {
        let entries = self.sources.entries(MAX_SOURCES as usize);
        entries.iter().map(|(source, bucket)| (*source, Bucket::from_bytes(bucket).syns)).collect()
    }

    /// Runs the loaded program on `packet`, `repeat` times, without a network.
    pub fn run(&mut self, packet: &[u8], repeat: u32) -> Result<Tried, Error> {
        let guard: &mut Xdp = program(&mut self.ebpf, "xdp_guard")?;
        let mut options = TestRunOptions::new();
        options.data_in = Some(packet);
        options.repeat = repeat;
        let result = guard.test_run(options).map_err(|error| Error::caused(Stage::Load, "xdp_guard", &error))?;
        // XDP_PASS is 2, XDP_DROP 1; the guard knows no other.
        Ok(Tried { passed: result.return_value == 2, per_run: result.duration })
    }

    /// Runs while [`RunStats`](crate::RunStats) lived.
    pub fn runs(&self) -> Result<ProgramRun, Error> {
        object::runs(&self.ebpf, &["xdp_guard"])
    }

    /// What the verifier made of the program.
    pub fn size(&self) -> Option<ProgramSize> {
        object::size(&self.ebpf, "xdp_guard")
    }
}

fn too_many(name: &str, count: usize, limit: u32) -> Error {
    Error::new(Stage::Map, name, format!("{count} entries are more than {limit}; shorten the list"))
}

fn replace(list: &mut Prefixes, wanted: &[(Prefix, u32)]) -> Result<(), Error> {
    for ((bits, address), value) in wanted {
        list.insert(*bits, *address, *value)?;
    }
    let kept: BTreeSet<_> = wanted.iter().map(|(prefix, _)| masked(*prefix)).collect();
    for (bits, address) in list.keys() {
        if !kept.contains(&masked((bits, address))) {
            list.remove(bits, address)?;
        }
    }
    Ok(())
}

/// A prefix with the bits behind its length cleared: two ways to write one network are one.
fn masked((bits, address): Prefix) -> Prefix {
    let bits = bits.min(128);
    let mask = if bits == 0 { 0 } else { u128::MAX << (128 - bits) };
    (bits, (u128::from_be_bytes(address) & mask).to_be_bytes())
}

fn pinned_layout(directory: &Path) -> Result<Values<8>, Error> {
    let path = directory.join("LAYOUT");
    let map =
        MapData::from_pin(&path).map_err(|error| Error::caused(Stage::Pin, path.display().to_string(), &error))?;
    Values::of(map, "LAYOUT")
}

/// Writes a layout hash into pinned maps, as a process of another version would have.
pub fn mark_layout(pin_dir: &Path, hash: u64) -> Result<(), Error> {
    pinned_layout(pin_dir)?.write(0, hash.to_ne_bytes())
}

/// Refuses maps of another layout.
fn check_layout(directory: &Path) -> Result<(), Error> {
    let path = directory.join("LAYOUT");
    if !path.exists() {
        return Ok(());
    }
    let shown = path.display().to_string();
    let found = u64::from_ne_bytes(pinned_layout(directory)?.read(0)?);
    // 0: made and not marked, by a process that died in between; its maps are empty and ours will do.
    if found == LAYOUT_HASH || found == 0 {
        return Ok(());
    }
    let why = format!(
        "the pinned maps have layout {found:016x}, this program has {LAYOUT_HASH:016x}; end the old guard with its own \
         `forebay-agent guard --remove`, or remove {}",
        directory.display()
    );
    Err(Error::new(Stage::Pin, shown, why))
}
