//! Network interfaces and their addresses, read from the kernel over a routing (netlink) socket.
//!
//! Sends two dump requests, `RTM_GETLINK` and `RTM_GETADDR`; see `rtnetlink(7)`. An address is
//! joined to its interface by index, so labels and the `/sys` of another network namespace do not
//! matter. Attributes that are not needed are skipped unread: one that a newer kernel adds cannot
//! hide an interface. `network` turns the result into facts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NlaBuffer, NlasIterator,
    parse_ip,
};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::LIMIT;

/// The largest datagram of a dump.
const MAX_DATAGRAM: usize = 32 * 1024;

/// Length of a message header.
const HEADER: usize = 16;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;

/// Length of `struct ifinfomsg`, and the attributes that follow it.
const LINK_HEADER: usize = 16;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;

/// Length of `struct ifaddrmsg`, and the attributes that follow it.
const ADDRESS_HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mtu: u32,
    pub(super) flags: u32,
    /// An ARP hardware type, `ARPHRD_*`.
    pub(super) hardware_type: u16,
    pub(super) hardware_address: Vec<u8>,
    /// Addresses and their prefix lengths.
    pub(super) addresses: Vec<(IpAddr, u8)>,
}

/// Returns all interfaces in the kernel's order.
pub(super) fn links() -> Result<Vec<Link>, Errno> {
    // The default protocol, 0, is NETLINK_ROUTE.
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT))?;
    let mut dump = Dump::default();
    for kind in [RTM_GETLINK, RTM_GETADDR] {
        request(&socket, kind, &mut |kind, body| dump.add(kind, body))?;
    }
    Ok(dump.into_links())
}

/// Returns the interfaces in one datagram.
#[cfg(fuzzing)]
pub(super) fn links_of(datagram: &[u8]) -> Vec<Link> {
    let mut dump = Dump::default();
    let _ = read(datagram, &mut |kind, body| dump.add(kind, body));
    dump.into_links()
}

/// The messages received so far.
#[derive(Default)]
struct Dump {
    links: Vec<Link>,
    /// Addresses by the index of their interface.
    addresses: HashMap<u32, Vec<(IpAddr, u8)>>,
}

impl Dump {
    fn add(&mut self, kind: u16, body: &[u8]) {
        match kind {
            RTM_NEWLINK => self.links.extend(link(body)),
            RTM_NEWADDR => {
                if let Some((index, address)) = address(body) {
                    self.addresses.entry(index).or_default().push(address);
                }
            }
            _ => {}
        }
    }

    fn into_links(mut self) -> Vec<Link> {
        for link in &mut self.links {
            link.addresses = self.addresses.remove(&link.index).unwrap_or_default();
        }
        self.links
    }
}

/// Requests a dump and passes the type and body of each message to `take`.
fn request(socket: &OwnedFd, kind: u16, take: &mut impl FnMut(u16, &[u8])) -> Result<(), Errno> {
    // The body stays zero: no filter.
    let mut bytes = [0; 32];
    let mut header = NetlinkBuffer::new(&mut bytes);
    header.set_length(32);
    header.set_message_type(kind);
    header.set_flags(NLM_F_REQUEST | NLM_F_DUMP);
    rustix::net::send(socket, &bytes, SendFlags::empty())?;
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let size = receive(socket, &mut buffer)?;
        let datagram = buffer.get(..size).ok_or(Errno::MSGSIZE)?;
        if read(datagram, take)? {
            return Ok(());
        }
    }
}

/// Returns the full length of the next datagram, which may exceed the buffer.
fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match rustix::net::recv(&socket, &mut *buffer, RecvFlags::TRUNC) {
            Ok((_, size)) => return Ok(size),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Passes the type and body of each message of a datagram to `take`. Returns whether the dump ends
/// with this datagram. Stops at a malformed message.
fn read(mut datagram: &[u8], take: &mut impl FnMut(u16, &[u8])) -> Result<bool, Errno> {
    while let Ok(message) = NetlinkBuffer::new_checked(datagram) {
        let body = message.payload();
        match message.message_type() {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(errno(body)),
            kind => take(kind, body),
        }
        let next = HEADER + body.len().next_multiple_of(4);
        datagram = datagram.get(next..).unwrap_or_default();
    }
    Ok(false)
}

/// Returns the error of an error message, which holds the negated number.
fn errno(body: &[u8]) -> Errno {
    match u32_at(body, 0).map(|code| code.cast_signed().saturating_neg()) {
        Some(code @ 1..4096) => Errno::from_raw_os_error(code),
        _ => Errno::IO,
    }
}

fn link(body: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: u32_at(body, 4)?,
        name: String::new(),
        mtu: 0,
        flags: u32_at(body, 8)?,
        hardware_type: u16::from_ne_bytes(*body.get(2..)?.first_chunk()?),
        hardware_address: Vec::new(),
        addresses: Vec::new(),
    };
    for attribute in attributes(body.get(LINK_HEADER..)?) {
        let value = attribute.value();
        match attribute.kind() {
            IFLA_ADDRESS => link.hardware_address = value.to_vec(),
            IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or_default(),
            IFLA_IFNAME => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                link.name = String::from_utf8_lossy(name).into_owned();
            }
            _ => {}
        }
    }
    Some(link)
}

/// Returns the index of an interface and one of its addresses.
fn address(body: &[u8]) -> Option<(u32, (IpAddr, u8))> {
    let prefix = *body.get(1)?;
    let index = u32_at(body, 4)?;
    let (mut address, mut local) = (None, None);
    for attribute in attributes(body.get(ADDRESS_HEADER..)?) {
        match attribute.kind() {
            IFA_ADDRESS => address = parse_ip(attribute.value()).ok(),
            IFA_LOCAL => local = parse_ip(attribute.value()).ok(),
            _ => {}
        }
    }
    // On a point-to-point link, IFA_ADDRESS is the address of the peer.
    Some((index, (local.or(address)?, prefix)))
}

/// Returns attributes up to the first malformed one.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(bytes).map_while(Result::ok)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + HEADER).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn kinds(datagram: &[u8]) -> (Result<bool, Errno>, Vec<u16>) {
        let mut kinds = Vec::new();
        let ended = read(datagram, &mut |kind, _| kinds.push(kind));
        (ended, kinds)
    }

    #[test]
    fn a_datagram_holds_several_messages() {
        let datagram = [message(16, b"a"), message(16, b"bb")].concat();
        assert_eq!(kinds(&datagram), (Ok(false), vec![16, 16]));
    }

    #[test]
    fn a_done_message_ends_the_dump() {
        let datagram = [message(16, b""), message(NLMSG_DONE, &[0; 4])].concat();
        assert_eq!(kinds(&datagram), (Ok(true), vec![16]));
    }

    #[test]
    fn an_error_message_is_an_error() {
        let datagram = message(NLMSG_ERROR, &(-1_i32).to_ne_bytes());
        assert_eq!(kinds(&datagram).0, Err(Errno::PERM));
        for invalid in [0, 1, i32::MIN] {
            let datagram = message(NLMSG_ERROR, &invalid.to_ne_bytes());
            assert_eq!(kinds(&datagram).0, Err(Errno::IO), "{invalid}");
        }
    }

    #[test]
    fn reading_stops_at_a_message_with_a_wrong_length() {
        for length in [0_u32, 3, 15, 17, u32::MAX] {
            let mut datagram = message(16, b"");
            datagram[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(kinds(&datagram), (Ok(false), vec![]), "{length}");
        }
    }

    #[test]
    fn a_link_is_read_from_its_attributes() {
        let mut body = vec![0, 0];
        body.extend(1_u16.to_ne_bytes());
        body.extend(7_u32.to_ne_bytes());
        body.extend(0x43_u32.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(attribute(IFLA_IFNAME, b"eth0\0"));
        body.extend(attribute(99, b"other"));
        body.extend(attribute(IFLA_MTU, &1500_u32.to_ne_bytes()));
        body.extend(attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]));
        let expected = Link {
            index: 7,
            name: "eth0".into(),
            mtu: 1500,
            flags: 0x43,
            hardware_type: 1,
            hardware_address: vec![2, 0, 0, 0, 0, 1],
            addresses: vec![],
        };
        assert_eq!(link(&body), Some(expected));
    }

    #[test]
    fn the_local_end_of_a_point_to_point_link_is_its_address() {
        let mut body = vec![2, 32, 0, 0];
        body.extend(3_u32.to_ne_bytes());
        body.extend(attribute(IFA_ADDRESS, &[10, 0, 0, 1]));
        body.extend(attribute(IFA_LOCAL, &[10, 0, 0, 2]));
        assert_eq!(address(&body), Some((3, ([10, 0, 0, 2].into(), 32))));
    }

    #[test]
    fn truncated_messages_are_ignored() {
        assert_eq!(link(&[0; 11]), None);
        assert_eq!(address(&[2, 24]), None);
        assert_eq!(address(&[10; 12]), None);
        assert_eq!(attributes(&[4]).count(), 0);
        assert_eq!(attributes(&[0, 0, 0, 0]).count(), 0);
    }
}
