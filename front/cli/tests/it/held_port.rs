//! A port that stays with a test while no process listens on it.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// A port of 127.0.0.1 with a socket that is bound to it and does not listen.
///
/// The system never chooses this port for a program that asks for any free port. It refuses
/// connections to the port until a process listens on it by its number. Such a process can end and
/// start again, because its listener and this socket both allow the reuse of the address.
pub(crate) struct HeldPort {
    address: SocketAddr,
    _socket: OwnedFd,
}

impl HeldPort {
    /// Takes a free port until the value is dropped.
    pub(crate) fn take() -> Self {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        Self { address, _socket: socket }
    }

    /// The address as `HOST:PORT`.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }
}
