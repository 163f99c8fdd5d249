//! Reader of zip archives. The central directory is read into memory and limited in size; sizes in
//! it are not trusted.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

use zip::read::ZipFile;
use zip::result::ZipError;
use zip::{ZipArchive, ZipReadOptions};

use super::rules::Refusal;
use super::{Entry, Kind, Pass, Stop};

/// The largest central directory.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// The longest target of a symlink.
const MAX_LINK_BYTES: u64 = 4096;

const TYPE_MASK: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;

/// Passes every entry to a pass.
pub(super) fn each<R: Read + Seek>(reader: R, pass: &mut Pass<'_, '_>) -> Result<(), Stop> {
    let limit = Rc::new(Cell::new(MAX_TABLE_BYTES));
    let reader = Metered {
        reader,
        left: Rc::clone(&limit),
    };
    let mut archive = ZipArchive::new(reader).map_err(into_io)?;
    limit.set(u64::MAX);
    for index in 0..archive.len() {
        let listed = archive.by_index_data(index).map_err(into_io)?;
        let name = listed.name_raw().to_vec();
        pass.set_current(&name);
        if listed.encrypted() {
            return Err(Refusal::Kind("an encrypted file").into());
        }
        let options = ZipReadOptions::new().enforce_header_consistency(true);
        match archive.by_index_with_options(index, options) {
            Ok(mut file) => process(&name, &mut file, pass)?,
            Err(ZipError::CompressionMethodNotSupported(_) | ZipError::UnsupportedArchive(_)) => {
                return Err(Refusal::Kind("its compression").into());
            }
            Err(error) => return Err(into_io(error).into()),
        }
    }
    Ok(())
}

fn process<R: Read>(
    name: &[u8],
    file: &mut ZipFile<'_, R>,
    pass: &mut Pass<'_, '_>,
) -> Result<(), Stop> {
    let is_directory = name.ends_with(b"/");
    let mode = file.unix_mode().filter(|mode| *mode != 0);
    // Archives from other systems have no permissions.
    let mode = mode.unwrap_or(if is_directory { 0o755 } else { 0o644 });
    let mut text = Vec::new();
    let kind = match mode & TYPE_MASK {
        SYMLINK => {
            file.take(MAX_LINK_BYTES).read_to_end(&mut text)?;
            Kind::Symlink(&text)
        }
        0 | REGULAR | DIRECTORY if is_directory => Kind::Directory,
        0 | REGULAR => Kind::File,
        DIRECTORY => Kind::Directory,
        _ => Kind::Other("a device or pipe"),
    };
    pass.process(Entry {
        name,
        kind,
        mode,
        modified: None,
        size: None,
        content: file,
    })
}

fn into_io(error: ZipError) -> io::Error {
    match error {
        ZipError::Io(error) => error,
        error => io::Error::other(error.to_string()),
    }
}

/// A reader with a byte limit.
struct Metered<R> {
    reader: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        let used = u64::try_from(count).unwrap_or(u64::MAX);
        match self.left.get().checked_sub(used) {
            Some(left) => self.left.set(left),
            None => return Err(io::Error::other("central directory is too long")),
        }
        Ok(count)
    }
}

impl<R: Seek> Seek for Metered<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}
