//! tar, entry by entry. Long names and attributes come in entries of their own before the one
//! they belong to; they are read here, within bounds that the format itself does not have.

use std::io::{self, Read};
use std::time::Duration;

use tar::{Archive, EntryType, Header, PaxExtensions};

use super::rules::Refusal;
use super::{Entry, Kind, Pass, Stop};

/// The largest entry that only describes the next one.
const MAX_NOTE_BYTES: u64 = 1 << 20;

/// Shows every entry to a pass and returns what follows the last.
pub(super) fn each<R: Read>(reader: R, pass: &mut Pass) -> Result<R, Stop> {
    let mut archive = Archive::new(reader);
    let mut notes = Notes::default();
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let header = entry.header().clone();
        match header.entry_type() {
            EntryType::XGlobalHeader => drop(note(&mut entry, &header, pass)?),
            EntryType::GNULongName => notes.name = Some(c_text(note(&mut entry, &header, pass)?)),
            EntryType::GNULongLink => notes.link = Some(c_text(note(&mut entry, &header, pass)?)),
            EntryType::XHeader => notes.read_pax(&note(&mut entry, &header, pass)?)?,
            _ => {
                take(&mut entry, &header, &notes, pass)?;
                notes = Notes::default();
            }
        }
    }
    Ok(archive.into_inner())
}

/// What was said of the next entry beforehand.
#[derive(Default)]
struct Notes {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

impl Notes {
    fn read_pax(&mut self, note: &[u8]) -> io::Result<()> {
        for extension in PaxExtensions::new(note) {
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

/// Reads an entry that only describes others.
fn note(entry: &mut dyn Read, header: &Header, pass: &mut Pass) -> Result<Vec<u8>, Stop> {
    let size = header.entry_size()?;
    if size > MAX_NOTE_BYTES {
        pass.name(&header.path_bytes());
        return Err(Refusal::LongName.into());
    }
    let mut text = Vec::new();
    entry.read_to_end(&mut text)?;
    // Not content, but it takes as long to read.
    pass.gate.count(text.len())?;
    match u64::try_from(text.len()) {
        Ok(length) if length == size => Ok(text),
        _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    }
}

/// Returns a text up to the zero byte that ends it.
fn c_text(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    bytes
}

fn take(entry: &mut dyn Read, header: &Header, notes: &Notes, pass: &mut Pass) -> Result<(), Stop> {
    let own_name = header.path_bytes();
    let name = notes.name.as_deref().unwrap_or(&own_name);
    let own_link = header.link_name_bytes().unwrap_or_default();
    let link = notes.link.as_deref().unwrap_or(&own_link);
    let size = header.entry_size()?;
    let kind = match header.entry_type() {
        _ if notes.is_sparse => Kind::Other("a sparse file"),
        // Two sizes for one entry: whoever believes the other one sees another archive.
        _ if notes.size.is_some_and(|noted| noted != size) => {
            Kind::Other("a size outside of the header")
        }
        // Before there was a sign for directories, a slash was it.
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
    pass.take(Entry {
        name,
        kind,
        mode: header.mode()?,
        modified: header.mtime().ok().map(Duration::from_secs),
        size: Some(size),
        content: entry,
    })
}
