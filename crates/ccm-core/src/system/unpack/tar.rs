//! Reader of tar archives. Handles GNU long names and pax headers, with size limits.

use std::io::{self, Read};
use std::time::Duration;

use tar::{Archive, EntryType, Header, PaxExtensions};

use super::rules::Refusal;
use super::{Entry, Kind, Pass, Stop};

/// The largest extension header.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// Passes every entry to a pass and returns the reader after the last.
pub(super) fn each<R: Read>(reader: R, pass: &mut Pass<'_, '_>) -> Result<R, Stop> {
    let mut archive = Archive::new(reader);
    let mut extensions = Extensions::default();
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let header = entry.header().clone();
        match header.entry_type() {
            EntryType::XGlobalHeader => drop(read_extension(&mut entry, &header, pass)?),
            EntryType::GNULongName => {
                extensions.name = Some(c_text(read_extension(&mut entry, &header, pass)?))
            }
            EntryType::GNULongLink => {
                extensions.link = Some(c_text(read_extension(&mut entry, &header, pass)?))
            }
            EntryType::XHeader => {
                extensions.read_pax(&read_extension(&mut entry, &header, pass)?)?
            }
            _ => {
                process(&mut entry, &header, &extensions, pass)?;
                extensions = Extensions::default();
            }
        }
    }
    Ok(archive.into_inner())
}

/// Extension headers of the next entry.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

impl Extensions {
    fn read_pax(&mut self, header: &[u8]) -> io::Result<()> {
        for extension in PaxExtensions::new(header) {
            let extension = extension?;
            let value = extension.value_bytes();
            match extension.key_bytes() {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = extension.value().ok().and_then(|text| text.parse().ok()),
                key => self.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        Ok(())
    }
}

/// Reads an extension header.
fn read_extension(
    entry: &mut dyn Read,
    header: &Header,
    pass: &mut Pass<'_, '_>,
) -> Result<Vec<u8>, Stop> {
    let size = header.entry_size()?;
    if size > MAX_EXTENSION_BYTES {
        pass.set_current(&header.path_bytes());
        return Err(Refusal::LongName.into());
    }
    let mut text = Vec::new();
    entry.read_to_end(&mut text)?;
    // Not content, but counted, because reading it takes as long.
    pass.checker.count(text.len())?;
    match u64::try_from(text.len()) {
        Ok(length) if length == size => Ok(text),
        _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    }
}

/// Returns the bytes before the first zero byte.
fn c_text(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    bytes
}

fn process(
    entry: &mut dyn Read,
    header: &Header,
    extensions: &Extensions,
    pass: &mut Pass<'_, '_>,
) -> Result<(), Stop> {
    let own_name = header.path_bytes();
    let name = extensions.name.as_deref().unwrap_or(&own_name);
    let own_link = header.link_name_bytes().unwrap_or_default();
    let link = extensions.link.as_deref().unwrap_or(&own_link);
    let size = header.entry_size()?;
    let kind = match header.entry_type() {
        _ if extensions.is_sparse => Kind::Other("a sparse file"),
        // Two sizes for one entry: readers would disagree about the archive's content.
        _ if extensions.size.is_some_and(|extended| extended != size) => {
            Kind::Other("a size outside of the header")
        }
        // Old tar formats mark directories by a trailing slash.
        EntryType::Regular if name.ends_with(b"/") => Kind::Directory,
        EntryType::Regular | EntryType::Continuous => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink(link),
        EntryType::Link => Kind::HardLink(link),
        EntryType::Char | EntryType::Block => Kind::Other("a device"),
        EntryType::Fifo => Kind::Other("a pipe"),
        EntryType::GNUSparse => Kind::Other("a sparse file"),
        _ => Kind::Other("an entry of an unknown kind"),
    };
    pass.process(Entry {
        name,
        kind,
        mode: header.mode()?,
        modified: header.mtime().ok().map(Duration::from_secs),
        size: Some(size),
        content: entry,
    })
}
