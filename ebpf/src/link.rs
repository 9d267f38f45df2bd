//! How an XDP program stays attached: for the life of a process, or beyond it by a pin.

use crate::error::{Error, Stage};
use aya::programs::Xdp;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::{XdpLink, XdpMode};
use std::path::Path;

/// How the kernel runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before memory for the packet is taken.
    Native,
    /// In the stack: works everywhere and gains little.
    Generic,
}

impl Mode {
    /// As a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }

    const fn aya(self) -> XdpMode {
        match self {
            Self::Native => XdpMode::Driver,
            Self::Generic => XdpMode::Skb,
        }
    }
}

/// Attaches `program` to `interface`, natively where the driver can.
pub(crate) fn attach(program: &mut Xdp, interface: &str, pin: Option<&Path>) -> Result<Mode, Error> {
    let place = || format!("xdp_guard at {interface}");
    let mut refused = None;
    for mode in [Mode::Native, Mode::Generic] {
        match program.attach(interface, mode.aya()) {
            Ok(link) => {
                if let Some(path) = pin {
                    let link = program.take_link(link).map_err(|error| Error::caused(Stage::Pin, place(), &error))?;
                    let link: FdLink = link
                        .try_into()
                        .map_err(|error: aya::programs::links::LinkError| Error::caused(Stage::Pin, place(), &error))?;
                    link.pin(path).map_err(|error| Error::caused(Stage::Pin, path.display().to_string(), &error))?;
                }
                return Ok(mode);
            }
            Err(error) => {
                let error = Error::caused(Stage::Attach, place(), &error);
                // A program that is there already is there in either mode.
                if matches!(error.errno, Some(libc::EBUSY | libc::EEXIST)) {
                    return Err(error);
                }
                refused = refused.or(Some(error));
            }
        }
    }
    Err(refused.unwrap_or_else(|| Error::new(Stage::Attach, place(), "no mode was tried")))
}

/// Puts `program` in the place of the one behind the pinned link, without a moment in which neither runs.
pub(crate) fn replace(program: &mut Xdp, pin: &Path) -> Result<(), Error> {
    let failed =
        |error: &(dyn std::error::Error + 'static)| Error::caused(Stage::Pin, pin.display().to_string(), error);
    let pinned = PinnedLink::from_pin(pin).map_err(|error| failed(&error))?;
    let link: XdpLink =
        FdLink::from(pinned).try_into().map_err(|error: aya::programs::links::LinkError| failed(&error))?;
    program.attach_to_link(link).map(|_| ()).map_err(|error| failed(&error))
}

/// Detaches what the pinned link holds; the kernel is done with it when this returns.
pub(crate) fn remove(pin: &Path) -> Result<(), Error> {
    let failed =
        |error: &(dyn std::error::Error + 'static)| Error::caused(Stage::Pin, pin.display().to_string(), error);
    let pinned = PinnedLink::from_pin(pin).map_err(|error| failed(&error))?;
    // The link is held across unpinning, so that closing it is what detaches.
    let link = pinned.unpin().map_err(|error| failed(&error))?;
    drop(link);
    Ok(())
}
