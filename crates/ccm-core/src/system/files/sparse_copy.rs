//! Copying a file with its holes.
//!
//! Images of disks and databases are often sparse: they have ranges that were never written and take
//! no space. Only the ranges with data are copied, in the kernel where it can, and the copy has the
//! same holes. File systems that don't report holes yield one range, the whole file.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::inspect::Opened;

/// Copies the content of a file to an empty one.
pub(super) fn copy(source: &Opened, mut target: &File) -> io::Result<()> {
    let size = u64::try_from(source.stat.st_size).unwrap_or_default();
    let mut file = &source.file;
    if size == 0 {
        // Empty, or a file in /proc, which reports no size.
        return io::copy(&mut file, &mut target).map(drop);
    }
    let mut position = 0;
    while let Some((start, end)) = next_data(file, position)? {
        file.seek(io::SeekFrom::Start(start))?;
        target.seek(io::SeekFrom::Start(start))?;
        let copied = io::copy(&mut file.take(end.saturating_sub(start)), &mut target)?;
        if copied == 0 {
            // Shorter than its size: truncated meanwhile, or a file in /sys.
            return Ok(());
        }
        position = start.saturating_add(copied);
    }
    // A hole at the end is not written.
    if target.metadata()?.len() < size {
        target.set_len(size)?;
    }
    Ok(())
}

/// Returns the start and the end of the next range with data, or `None` if only a hole follows. The
/// end is unlimited where holes are not supported.
fn next_data(file: &File, position: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(position)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((position, u64::MAX))),
        Err(errno) => return Err(errno.into()),
    };
    Ok(Some((
        start,
        rustix::fs::seek(file, SeekFrom::Hole(start))?,
    )))
}
