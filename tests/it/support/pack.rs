//! Archives in memory, of any shape.

use std::io::{Cursor, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// Returns a tar of these files, modes 0644.
pub fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        builder
            .append(&header(name, content.len(), 0o644), content.as_bytes())
            .unwrap();
    }
    builder.into_inner().unwrap()
}

/// Returns a tar with one symlink.
pub fn tar_with_link(name: &str, target: &str) -> Vec<u8> {
    let mut header = header(name, 0, 0o777);
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_link_name(target).unwrap();
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, std::io::empty()).unwrap();
    builder.into_inner().unwrap()
}

fn header(name: &str, size: usize, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    // By hand: the library would refuse the names of hostile archives.
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(u64::try_from(size).unwrap());
    header.set_mode(mode);
    header.set_cksum();
    header
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn tgz(files: &[(&str, &str)]) -> Vec<u8> {
    gzip(&tar(files))
}

pub fn zip(files: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in files {
        let options = SimpleFileOptions::default().unix_permissions(0o644);
        writer.start_file(*name, options).unwrap();
        writer.write_all(content.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}
