//! The cookie of a network namespace, which the standard library and rustix do not ask for.
#![expect(unsafe_code, reason = "one getsockopt")]

use crate::error::{Error, Stage};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

const SO_NETNS_COOKIE: libc::c_int = 71;

/// The cookie of the calling thread's network namespace; 0 on kernels that have none, where programs see 0 as well.
pub fn netns_cookie() -> Result<u64, Error> {
    let failed = |error: &io::Error| Error::io(Stage::Place, "SO_NETNS_COOKIE", error);
    let socket = UdpSocket::bind("127.0.0.1:0")
        .or_else(|_| UdpSocket::bind("[::1]:0"))
        .or_else(|_| UdpSocket::bind("0.0.0.0:0"));
    let socket = socket.map_err(|error| failed(&error))?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes, which `cookie` has.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        return Ok(cookie);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(0),
        error => Err(failed(&error)),
    }
}
