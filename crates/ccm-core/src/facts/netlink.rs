//! The kernel's list of network interfaces and their addresses, asked over a routing socket.
//!
//! This is where every tool gets it from in the end, in the kernel's order: an address belongs to
//! an interface by its number, which neither labels nor a `/sys` of another namespace can blur.
//! Two questions, each answered by a series of datagrams; read next: `rtnetlink(7)`. It only
//! takes messages apart; what the numbers mean to people is said in `network`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::LIMIT;

/// The most the kernel puts into one datagram of such an answer.
const DATAGRAM: usize = 32 * 1024;

const HEADER: usize = 16;
const REQUEST_DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;

const LINK_HEADER: usize = 16;
const LINK_HARDWARE: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;

const ADDRESS_HEADER: usize = 8;
const ADDRESS_FAR: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mtu: u32,
    pub(super) flags: u32,
    /// What sort of hardware it is, by ARP's numbers.
    pub(super) hardware_type: u16,
    pub(super) hardware_address: Vec<u8>,
    /// With the length of their prefix.
    pub(super) addresses: Vec<(IpAddr, u8)>,
}

/// Returns all interfaces.
pub(super) fn links() -> Result<Vec<Link>, Errno> {
    // No protocol means the first one, which is routing.
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT))?;
    let mut told = Told::default();
    for question in [GET_LINK, GET_ADDRESS] {
        dump(&socket, question, &mut |kind, body| told.take(kind, body))?;
    }
    Ok(told.into_links())
}

/// Returns the interfaces that one datagram tells of.
#[cfg(fuzzing)]
pub(super) fn links_of(datagram: &[u8]) -> Vec<Link> {
    let mut told = Told::default();
    let _ = read(datagram, &mut |kind, body| told.take(kind, body));
    told.into_links()
}

/// What the kernel has told so far.
#[derive(Default)]
struct Told {
    links: Vec<Link>,
    /// By the number of their interface.
    addresses: HashMap<u32, Vec<(IpAddr, u8)>>,
}

impl Told {
    fn take(&mut self, kind: u16, body: &[u8]) {
        match kind {
            NEW_LINK => self.links.extend(link(body)),
            NEW_ADDRESS => {
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

/// Asks for everything of a sort, and hands over the kind and body of each message.
fn dump(socket: &OwnedFd, question: u16, take: &mut impl FnMut(u16, &[u8])) -> Result<(), Errno> {
    rustix::net::send(socket, &request(question), SendFlags::empty())?;
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let size = receive(socket, &mut buffer)?;
        let datagram = buffer.get(..size).ok_or(Errno::MSGSIZE)?;
        if read(datagram, take)? {
            return Ok(());
        }
    }
}

/// Returns a question for all interfaces, or all addresses of any family.
fn request(question: u16) -> Vec<u8> {
    const LENGTH: u32 = 32;
    let mut request = Vec::with_capacity(32);
    request.extend(LENGTH.to_ne_bytes());
    request.extend(question.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    // Sequence, sender, and a body that narrows nothing down.
    request.resize(32, 0);
    request
}

/// Returns the true length of the next datagram, which may be more than there was room for.
fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match rustix::net::recv(&socket, &mut *buffer, RecvFlags::TRUNC) {
            Ok((_, size)) => return Ok(size),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Reads the messages of a datagram. Returns whether the last one was among them.
fn read(mut datagram: &[u8], take: &mut impl FnMut(u16, &[u8])) -> Result<bool, Errno> {
    while let Some((message, rest)) = split(datagram, u32_at(datagram, 0)) {
        let (Some(kind), Some(body)) = (u16_at(message, 4), message.get(HEADER..)) else {
            break;
        };
        match kind {
            DONE => return Ok(true),
            ERROR => return Err(errno(u32_at(body, 0))),
            _ => take(kind, body),
        }
        datagram = rest;
    }
    Ok(false)
}

/// Returns the error an error message names: a number that is negative on the wire.
fn errno(code: Option<u32>) -> Errno {
    let code = code.map(|code| code.cast_signed().saturating_neg());
    match code {
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
        hardware_type: u16_at(body, 2)?,
        hardware_address: Vec::new(),
        addresses: Vec::new(),
    };
    for (kind, value) in attributes(body.get(LINK_HEADER..)?) {
        match kind {
            LINK_HARDWARE => link.hardware_address = value.to_vec(),
            LINK_MTU => link.mtu = u32_at(value, 0).unwrap_or_default(),
            LINK_NAME => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                link.name = String::from_utf8_lossy(name).into_owned();
            }
            _ => {}
        }
    }
    Some(link)
}

/// Returns the number of an interface and one of its addresses.
fn address(body: &[u8]) -> Option<(u32, (IpAddr, u8))> {
    let family = *body.first()?;
    let prefix = *body.get(1)?;
    let index = u32_at(body, 4)?;
    let (mut far, mut local) = (None, None);
    for (kind, value) in attributes(body.get(ADDRESS_HEADER..)?) {
        match kind {
            ADDRESS_FAR => far = ip(family, value),
            ADDRESS_LOCAL => local = ip(family, value),
            _ => {}
        }
    }
    // On a point-to-point link the plain address is that of the other end.
    Some((index, (local.or(far)?, prefix)))
}

fn ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        FAMILY_IPV4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        FAMILY_IPV6 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

/// Returns the attributes of a message, each with its kind.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u16_at(bytes, 0).map(u32::from);
        let (attribute, rest) = split(bytes, length)?;
        let kind = u16_at(attribute, 2)?;
        bytes = rest;
        Some((kind, attribute.get(4..)?))
    })
}

/// Splits off a part that starts with its own length; the next one starts at a multiple of four.
fn split(bytes: &[u8], length: Option<u32>) -> Option<(&[u8], &[u8])> {
    let length = usize::try_from(length?).ok()?;
    let part = bytes.get(..length)?;
    let next = length.checked_next_multiple_of(4)?;
    Some((part, bytes.get(next..).unwrap_or_default()))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
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
    fn the_last_message_ends_the_answer() {
        let datagram = [message(16, b""), message(DONE, &[0; 4])].concat();
        assert_eq!(kinds(&datagram), (Ok(true), vec![16]));
    }

    #[test]
    fn an_error_message_is_an_error() {
        let datagram = message(ERROR, &(-1_i32).to_ne_bytes());
        assert_eq!(kinds(&datagram).0, Err(Errno::PERM));
        for odd in [0, 1, i32::MIN] {
            let datagram = message(ERROR, &odd.to_ne_bytes());
            assert_eq!(kinds(&datagram).0, Err(Errno::IO), "{odd}");
        }
    }

    #[test]
    fn a_message_that_lies_about_its_length_is_where_reading_stops() {
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
        body.extend(attribute(LINK_NAME, b"eth0\0"));
        body.extend(attribute(99, b"other"));
        body.extend(attribute(LINK_MTU, &1500_u32.to_ne_bytes()));
        body.extend(attribute(LINK_HARDWARE, &[2, 0, 0, 0, 0, 1]));
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
        let mut body = vec![FAMILY_IPV4, 32, 0, 0];
        body.extend(3_u32.to_ne_bytes());
        body.extend(attribute(ADDRESS_FAR, &[10, 0, 0, 1]));
        body.extend(attribute(ADDRESS_LOCAL, &[10, 0, 0, 2]));
        assert_eq!(address(&body), Some((3, ([10, 0, 0, 2].into(), 32))));
    }

    #[test]
    fn messages_cut_short_give_nothing() {
        assert_eq!(link(&[0; 11]), None);
        assert_eq!(address(&[FAMILY_IPV4, 24]), None);
        assert_eq!(address(&[FAMILY_IPV6; 12]), None);
        assert_eq!(attributes(&[4]).count(), 0);
        assert_eq!(attributes(&[0, 0, 0, 0]).count(), 0);
    }
}
